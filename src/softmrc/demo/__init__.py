"""The demo: a training job on four ranks keeps its pace and its result while its network breaks in five ways.

`script` says what breaks when, `ranks` are the processes, `story` is the whole course, `report` the page at the end.
`engine` is another demo, of the engine alone. No torch in here: the ranks are processes that run `softmrc.torch`.
"""
