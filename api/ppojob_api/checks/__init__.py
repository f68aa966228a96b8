"""Rules beyond CEL, one small function each; `ppojob_api.validation` lists them."""
