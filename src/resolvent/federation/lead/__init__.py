"""The lead: runs that are followed and continued, and the rehearsal on one machine."""
