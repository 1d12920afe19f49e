"""Matrix products in machine code made for the processor at hand, for XLA's CPU programs to call.

`writing` writes LLVM's intermediate code, `product` the products themselves, `calling` how XLA calls one and
how cores share it, `target` what the processor has and the making of the machine code.
"""
