"""What CEL cannot say of a job, one small function a rule; `ppojob_api.validation` lists them."""
