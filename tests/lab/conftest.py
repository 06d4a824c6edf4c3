"""The labs that several tests share."""

from tests.lab.labs import acting, plain

__all__ = ["acting", "plain"]
