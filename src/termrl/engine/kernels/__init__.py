"""Products, attention and norms in machine code made for the processor, for XLA's CPU programs to call.

`writing` writes LLVM's intermediate code, `tiles` what every product is made of, `product`, `attention` and
`norm` the functions themselves; `calling` is how XLA calls one, `interface` what depends on XLA's version,
`sharing` how cores share a call, `target` what the processor has, `registered` the whole, made and known to
XLA.
"""
