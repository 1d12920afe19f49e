"""The keeper: one small process per run that makes every sandbox and runs everything inside them.

It is started as a plain Python without site-packages, so nothing in this package imports anything but
the standard library and its own modules. It forks cheaply because it is small, and the training process,
which is large and full of threads, never has to fork at all.
"""
