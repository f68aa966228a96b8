"""Messages of the control RPC: ids, lengths, scalars, texts; never a tensor."""
