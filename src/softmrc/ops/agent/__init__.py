"""The agent of a host: what its devices count, for Prometheus, and for the page that people look at.

It needs `pip install softmrc[operate]`. Devices are asked over their control sockets; an agent changes nothing.
"""
