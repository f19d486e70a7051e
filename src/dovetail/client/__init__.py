"""The caller: one server at the other end, whatever it speaks."""
