"""Combinators: functions from one algorithm to another, such as acceleration and compression."""
