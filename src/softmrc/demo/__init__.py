"""The demo: the same training job over TCP and over MRC while the network breaks in five ways.

`story` is the whole course and `outcome` what it found; `script` says what breaks when, `ranks` are the processes,
`report` is the page at the end. The network is one of `planes` (network namespaces), `lab` and `loopback`. `engine` is
another demo, of the engine alone. No torch in here: the ranks are processes that run `softmrc.torch`.
"""
