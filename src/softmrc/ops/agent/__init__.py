"""The agent of a host: what its devices count, for Prometheus, and for the page that people look at.

It needs `pip install softmrc[operate]`. It queries devices through their control sockets; an agent changes nothing.
"""
