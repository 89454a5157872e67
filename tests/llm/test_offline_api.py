"""The offline API: forms of prompts, order, streams, seeds, stop strings, refusals, and nothing left behind."""

from __future__ import annotations

import signal
import threading

import pytest

from pymllm import LLM, SamplingParams
from pymllm.errors import ConfigError, EngineDeadError, RequestError
from pymllm.testing.tiny import make_tiny_checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)


def idle(llm):
    """Whether nothing is open; a finished request in between makes sure that aborts were carried out."""
    llm.generate([[1, 2, 3]], SamplingParams(max_tokens=1))
    stats = llm.frontend.client.stats()
    total = stats.pages_used + stats.pages_cached + stats.pages_free
    return (stats.running, stats.waiting, stats.pages_used, total) == (0, 0, 0, llm.info.pages)


def test_all_forms_of_prompts(llm, tokenizer):
    ids = tokenizer("hello")["input_ids"]
    texts = [
        llm.generate(form, GREEDY)[0].outputs[0].text
        for form in ("hello", ["hello"], ids, [ids], {"prompt": "hello"}, [{"prompt_token_ids": ids}])
    ]
    assert len(set(texts)) == 1
    assert llm.generate([], GREEDY) == []


def test_results_come_in_order_whatever_finishes_first(llm):
    lengths = [17, 1, 9, 30, 2]
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    outputs = llm.generate([f"prompt {n}" for n in lengths], params)
    assert [out.prompt for out in outputs] == [f"prompt {n}" for n in lengths]
    assert [len(out.outputs[0].token_ids) for out in outputs] == lengths


def test_a_stream_is_the_answer_in_pieces(llm):
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=40, ignore_eos=True, n=2)
    whole = llm.generate("é🎉", params)[0]
    deltas = list(llm.stream("é🎉", params))
    for answer in whole.outputs:
        mine = [delta for delta in deltas if delta.index == answer.index]
        assert "".join(delta.text for delta in mine) == answer.text
        assert [token for delta in mine for token in delta.token_ids] == answer.token_ids
        assert [delta.finish_reason for delta in mine if delta.finish_reason] == ["length"]


def test_closing_a_stream_aborts_it(llm):
    stream = llm.stream("hello", SamplingParams(max_tokens=900, ignore_eos=True))
    assert next(stream).token_ids
    stream.close()
    assert idle(llm)


def test_a_stream_is_checked_when_it_is_made(llm):
    with pytest.raises(RequestError, match="empty"):
        llm.stream([])


def test_n_answers_use_consecutive_seeds(llm):
    sampled = {"temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    together = llm.generate("hello", SamplingParams(n=3, seed=7, **sampled))[0]
    alone = [llm.generate("hello", SamplingParams(seed=7 + i, **sampled))[0].outputs[0].text for i in range(3)]
    assert [answer.text for answer in together.outputs] == alone
    assert len(set(alone)) == 3


def test_without_a_seed_answers_differ(llm):
    outputs = llm.generate(["hello"] * 8, SamplingParams(max_tokens=12, ignore_eos=True))
    assert len({out.outputs[0].text for out in outputs}) > 1


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_cuts_the_text_and_frees_the_request(llm, include):
    params = {"temperature": 0, "max_tokens": 60, "ignore_eos": True}
    text = llm.generate("hello", SamplingParams(**params))[0].outputs[0].text
    stop = text[20:23]
    out = llm.generate("hello", SamplingParams(stop=[stop], include_stop_str_in_output=include, **params))[0]
    end = text.index(stop) + (len(stop) if include else 0)
    assert out.outputs[0].text == text[:end]
    assert (out.outputs[0].finish_reason, out.outputs[0].stop_reason) == ("stop", stop)
    assert len(out.outputs[0].token_ids) < 60
    assert idle(llm)


def test_cached_prompt_tokens_are_counted(llm):
    prompt = list(range(100, 180))
    llm.generate([prompt], GREEDY)
    assert llm.generate([prompt], GREEDY)[0].num_cached_tokens >= 64


@pytest.mark.parametrize(
    "bad, sentence",
    [
        ([], "prompts\\[1\\]: .*empty"),
        ([99999], "prompts\\[1\\]: .*99999 is outside the vocabulary"),
        ([1] * 5000, "prompts\\[1\\]: .*5000 tokens"),
        ("\ud800", "prompts\\[1\\]: .*lone surrogate"),
        ({"text": "x"}, 'prompts\\[1\\]: .*"prompt_token_ids"'),
        (7, "prompts\\[1\\]: .*a string or a list"),
        ([1.5], "prompts\\[1\\]: .*integers"),
    ],
)
def test_one_bad_prompt_is_named_and_nothing_runs(llm, bad, sentence):
    assert idle(llm)
    before = llm.frontend.client.stats().total_steps
    with pytest.raises(RequestError, match=sentence):
        llm.generate(["good", bad, "good"], GREEDY)
    assert llm.frontend.client.stats().total_steps == before


def test_wrong_sampling_params_are_refused(llm):
    with pytest.raises(RequestError, match="2 sampling_params for 3 prompts"):
        llm.generate(["a", "b", "c"], [GREEDY, GREEDY])
    with pytest.raises(RequestError, match="must be a SamplingParams, not dict"):
        llm.generate("a", {"max_tokens": 3})
    with pytest.raises(RequestError, match=r"conversations\[1\]: .*wizard"):
        llm.chat([[{"role": "user", "content": "x"}], [{"role": "wizard", "content": "x"}]])


def test_thousands_of_prompts_at_once(llm):
    prompts = [[1 + index % 250, 1 + index // 250] for index in range(2000)]
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=1))
    assert [out.prompt_token_ids for out in outputs] == prompts
    assert all(len(out.outputs[0].token_ids) == 1 for out in outputs)
    assert idle(llm)


def test_ctrl_c_aborts_everything(llm):
    main = threading.main_thread().ident

    def interrupt():
        watch = threading.Event()
        while not llm.frontend.client.stats().running:
            watch.wait(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    helper = threading.Thread(target=interrupt)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        llm.generate([[index] for index in range(1, 20)], SamplingParams(max_tokens=900, ignore_eos=True))
    helper.join()
    assert idle(llm)


def test_several_threads_may_ask_at_once(llm):
    expected = [out.outputs[0].text for out in llm.generate([f"p{i}" for i in range(6)], GREEDY)]
    found = [""] * 6

    def ask(index):
        found[index] = llm.generate(f"p{index}", GREEDY)[0].outputs[0].text

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


def test_progress_is_drawn_when_asked_for(llm, capsys):
    llm.generate(["a", "b"], GREEDY)
    assert capsys.readouterr().err == ""
    llm.generate(["a", "b"], GREEDY, progress=True)
    assert "2/2" in capsys.readouterr().err


def test_a_config_file_and_overrides(folder, tmp_path, small, llm):
    file = tmp_path / "tiny.yaml"
    file.write_text(f"model: {{path: {folder}}}\ncache: radix\n")
    with LLM(file, {"cache.plugin": "chunk", **small}, progress=False) as other:
        assert {c.kind: c.name for c in other.info.choices}["cache"] == "chunk"
        assert other.generate("hello", GREEDY)[0].outputs == llm.generate("hello", GREEDY)[0].outputs
        assert other.tokenizer is not None


def test_mistakes_in_the_configuration_are_config_errors(folder):
    with pytest.raises(ConfigError, match="cahce"):
        LLM(folder, {"cahce.plugin": "chunk"}, progress=False)


def test_a_folder_without_tokenizer_serves_token_ids(tmp_path, small, llm):
    bare = make_tiny_checkpoint(tmp_path / "bare", "qwen3", seed=1)
    for file in bare.glob("*token*"):
        file.unlink()
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    with LLM(bare, small, progress=False) as other:
        assert other.tokenizer is None
        out = other.generate([[5, 6, 7]], GREEDY)[0].outputs[0]
        assert out.token_ids == llm.generate([[5, 6, 7]], GREEDY)[0].outputs[0].token_ids
        assert out.text == ""
        with pytest.raises(RequestError, match="list of token ids"):
            other.generate("hello", GREEDY)
        with pytest.raises(RequestError, match="no tokenizer"):
            other.chat([{"role": "user", "content": "x"}])


def test_a_closed_llm_says_so(folder, small):
    closed = LLM(folder, small, progress=False)
    closed.close()
    closed.close()
    with pytest.raises(EngineDeadError):
        closed.generate("hello", GREEDY)


def test_generation_config_gives_the_defaults(tmp_path, small, folder, llm):
    import json
    import shutil

    other_folder = shutil.copytree(folder, tmp_path / "copy")
    file = other_folder / "generation_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "do_sample": True, "top_k": 1}))
    greedy = llm.generate("hello", GREEDY)[0].outputs[0].text
    with LLM(other_folder, small, progress=False) as other:
        sampled = SamplingParams(max_tokens=10, ignore_eos=True)
        assert other.generate("hello", sampled)[0].outputs[0].text == greedy
