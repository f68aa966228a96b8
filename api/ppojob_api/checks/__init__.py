"""Rules that CEL cannot express, a function each; `ppojob_api.validation` lists them."""
