"""What jobs leave behind: flight recorders, profiles and status reports, in one form, matched across ranks."""
