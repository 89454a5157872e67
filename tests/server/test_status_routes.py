"""Health, facts, metrics and the page."""

from __future__ import annotations

import re
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families


def samples(http: httpx.Client) -> dict[str, float]:
    text = http.get("/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = "".join(f"[{sample.labels[key]}]" for key in sorted(sample.labels) if key in ("reason", "kind"))
            found[sample.name + labels] = sample.value
    return found


def test_health_and_readiness(http: httpx.Client) -> None:
    assert http.get("/health").json() == {"status": "ok"}
    assert http.head("/health").status_code == 200
    assert http.get("/ready").json() == {"status": "ready"}


def test_metrics_count_what_happened(http: httpx.Client, server: Any) -> None:
    server.wait_idle()
    before = samples(http)
    prompt = {"prompt": [7] * 64, "cache_salt": "metrics", "temperature": 0, "ignore_eos": True}
    http.post("/v1/completions", json={**prompt, "max_tokens": 6})
    http.post("/v1/completions", json={**prompt, "max_tokens": 4, "stream": True})
    http.post("/v1/completions", json={"prompt": ""})
    http.get("/nothing")
    server.wait_idle()
    after = samples(http)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0.0)

    assert grown("pymllm_generated_tokens_total") == 10
    assert grown("pymllm_prompt_tokens_total") == 128
    assert grown("pymllm_prefix_cache_hit_tokens_total") == 48  # three whole pages; the last token is computed
    assert grown("pymllm_requests_finished_total[length]") == 2
    assert grown("pymllm_errors_total[invalid_request_error]") == 1
    assert grown("pymllm_errors_total[not_found_error]") == 1
    for name in ("time_to_first_token", "time_per_output_token", "e2e_request", "queue_time"):
        assert grown(f"pymllm_{name}_seconds_count") == 2
        assert grown(f"pymllm_{name}_seconds_sum") >= 0
    assert after["pymllm_requests_running"] == after["pymllm_requests_waiting"] == after["pymllm_kv_pages_used"] == 0
    assert after["pymllm_kv_pages_cached"] > 0
    pages = server.state.frontend.client.info.pages
    assert after["pymllm_kv_pages_cached"] + after["pymllm_kv_pages_free"] == pages
    assert after["pymllm_preemptions_total"] == 0
    assert after["pymllm_engine_up"] == 1
    assert not [name for name in after if "_created" in name]
    assert "_created" not in http.get("/metrics").text


def test_info_says_what_was_chosen_and_why(http: httpx.Client) -> None:
    info = http.get("/info").json()
    assert {one["kind"]: one["name"] for one in info["plugins"]}.items() >= {
        "model": "llama",
        "attention": "torch",
        "cache": "radix",
    }.items()
    assert all(one["reason"] and one["distribution"] and one["version"] for one in info["plugins"])
    assert info["versions"].keys() >= {"pymllm", "python", "torch", "transformers"}
    assert info["engine"]["max_context"] == 32768
    assert info["engine"]["capacity_tokens"] == info["engine"]["pages"] * info["engine"]["page_size"]
    assert info["stats"]["running"] == 0


def test_the_page_needs_nothing_from_elsewhere(http: httpx.Client) -> None:
    response = http.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    # The icon's namespace is a name, not an address that is fetched.
    assert re.findall(r"https?://[^'\"\s]+", response.text) == ["http://www.w3.org/2000/svg"]
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"(?!data:)", response.text)
