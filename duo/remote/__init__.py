"""Remote drafts: the protocol, the lead's side and the draft's side."""
