"""What the methods of the control RPC carry: ids, lengths, scalars, texts; never a tensor."""
