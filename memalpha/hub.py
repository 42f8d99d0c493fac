"""Whether the model hub answers, asked before its client is: that one retries an unreachable hub for minutes."""

from __future__ import annotations

import ssl
import urllib.error
import urllib.request


def hub_reachable() -> bool:
    """One HEAD request of at most 5 seconds to the hub that `huggingface_hub` is set to; False where it is offline."""
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
