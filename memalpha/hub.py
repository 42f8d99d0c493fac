"""Test of the model hub's reachability before its client is used, which retries for minutes."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request


def hub_reachable() -> bool:
    """Return True if the hub answers one HEAD request within 5 seconds; False in offline mode."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except urllib.error.URLError as error:  # any status, and a certificate that only this client refuses, is an answer
        return isinstance(error, urllib.error.HTTPError) or isinstance(error.reason, ssl.SSLError)
    except OSError:
        return False
    return True
