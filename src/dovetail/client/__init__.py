"""The caller: one server, spoken to in the revision it knows; no transport is known here."""
