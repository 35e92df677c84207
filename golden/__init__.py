"""Golden files: inputs that any machine draws alike, and what is expected of them, proven by ball arithmetic to 106 bits.

`data` holds the files and their manifest; `sets` says which cases there are; `store` makes, reads and checks the folder.
"""
