"""The law of sampled answers and of acceptance: chi-square, brute force, cases by hand."""

import numpy as np
import pytest
import torch

from analysis.decoding.schemes import NOTHING
from analysis.rules import (
    AbsoluteThreshold,
    Additive,
    Mars,
    Multiplicative,
    Rule,
    Threshold,
    TopMAdditive,
    TopMMultiplicative,
    Typical,
)
from analysis.topk import TopK
from analysis.trees.topology import ROOT, sequence, spec_infer, symmetric
from pipeline.decoding import verification
from pipeline.decoding.loop import decode
from pipeline.decoding.proposers import ModelProposer
from pipeline.decoding.sampling import TOKEN, InverseCdfSampler, Noise
from pipeline.decoding.session import scheme_of
from pipeline.decoding.tree_drafting import Draft
from pipeline.decoding.verification import (
    RuleVerifier,
    SampledPath,
    SpeculativeSampling,
    apply_rule,
    rule_inputs,
)
from pipeline.models.logit_statistics import inverse_cdf
from tests import methods
from tests.pipeline.decoding.pair import CPU, UNEVEN, Markov, V
from tests.pipeline.heads import lookup_proposer


def chi_square(counts, law):
    """The statistic less its mean, in standard deviations; cells expected below 5 are pooled."""
    expected = law.ravel() * counts.sum()
    small = expected < 5
    seen = np.append(counts.ravel()[~small], counts.ravel()[small].sum())
    wanted = np.append(expected[~small], expected[small].sum())
    statistic = ((seen - wanted) ** 2 / wanted)[wanted > 0].sum()
    freedom = np.count_nonzero(wanted) - 1
    return float((statistic - freedom) / np.sqrt(2 * freedom))


def eight(seed):
    """A model of eight tokens."""
    return Markov(1.5 * torch.randn((8, 8), generator=torch.Generator().manual_seed(seed)))


@pytest.mark.parametrize(
    ("drafter", "sampling"),
    [("model", "speculative"), ("model", "races"), ("prompt_lookup", "speculative")],
)
def test_sampled_answers_have_the_law_of_the_target(drafter, sampling):
    model, smaller = eight(0), eight(1)
    p = torch.softmax(model.table.double() / 1.3, 1).numpy()
    counts = np.zeros((8, 8, 8))
    entry = {"drafter": drafter, "sampling": sampling, "draft_length": 2, "temperature": 1.3}
    [method] = methods.build([entry])
    for seed in range(900):
        choice, verifier = scheme_of(method, Noise(seed, "p", 4, CPU, 2))
        lookup = drafter == "prompt_lookup"
        source = lookup_proposer(2) if lookup else ModelProposer(smaller, choice)
        answer = decode(model, source, verifier, [3, 5], 2, 4)
        counts[tuple(answer.tokens[:3])] += 1
    joint = p[5][:, None, None] * p[:, :, None] * p[None]
    assert abs(chi_square(counts, joint)) < 4
    # and the test has power: the law of the drafter would be refused
    q = torch.softmax(smaller.table.double() / 1.3, 1).numpy()
    assert chi_square(counts, q[5][:, None, None] * q[:, :, None] * q[None]) > 20


RULES = [
    *[Mars(theta) for theta in (0.3, 0.9, 0.98)],
    *[Additive(t) for t in (0.0, 0.1, 0.5)],
    *[Multiplicative(alpha) for alpha in (0.5, 1.0)],
    *[TopMAdditive(m, 0.2) for m in (1, 2, 40)],
    TopMMultiplicative(3, 0.6),
    AbsoluteThreshold(0.2),
    Typical(0.3, 0.3),
    Typical(0.05, 0.9),
]


def says(rule, z, drafted, **how):
    """Which drafted tokens a rule accepts under logits (n, V)."""
    return apply_rule(rule, V, [column.numpy() for column in rule_inputs(rule, z, drafted)], **how)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.label)
def test_what_a_rule_asks_for_judges_as_whole_distributions_do(rule):
    generator = torch.Generator().manual_seed(0)
    z = torch.randn((400, V), generator=generator).mul(2).round(decimals=1)  # with ties
    z[::7] -= 9  # no positive logit
    drafted = torch.randint(V, (400,), generator=generator)
    drafted[::2] = z[::2].topk(2).indices[:, 1]
    dist, order = TopK.from_logits(z), z.sort(dim=1, descending=True, stable=True).indices
    rank = 1 + (order == drafted[:, None]).int().argmax(1).numpy()
    below = z.gather(1, drafted[:, None])[:, 0].double() - z.amax(1)
    wanted = rule.accepts(dist, rank, below.numpy() - dist.top_surprisal)
    assert (says(rule, z, drafted) == wanted).all()
    assert len({*wanted.tolist()}) == 2
    assert (says(rule, z, drafted, beyond_first=True) == wanted & (rank > 1)).all()
    assert not says(rule, z, torch.full_like(drafted, NOTHING)).any()


def test_a_class_that_says_anew_what_it_accepts_is_shown_everything():
    class Sure(Additive):
        def cut(self, dist, /):
            return Threshold(offset=np.where(dist.entropy < 1.0, 1.0, 0.0))

    class Renamed(Additive):
        pass

    assert Renamed.columns_read == Additive.columns_read == ("top_surprisal",)
    assert Sure.columns_read == Rule.columns_read
    z = torch.full((2, V), -torch.inf)
    z[:, :3] = torch.tensor([[3.0, 0.0, 0.0], [1.0, 1.0, 0.0]])
    assert says(Sure(0.5), z, torch.tensor([1, 1])).tolist() == [False, True]


class Nucleus(Rule):
    """A rule without a threshold: the smallest set of tokens with at least this mass."""

    share: float

    def accepted_count(self, dist, /):
        count = 1 + (np.cumsum(dist.probs, axis=1) < self.share).sum(axis=1)
        return np.where(count <= dist.k, count, -1).astype(np.int32)


def test_a_rule_given_by_a_count_sees_all_tokens():
    z = torch.linspace(2.0, 0.0, V).repeat(V, 1)  # rank i + 1 is token i
    mass = np.cumsum(z[0].double().softmax(0).numpy())
    for share in (0.5, 0.9, 0.99):
        count = 1 + int((mass < share).sum())
        accepted = says(Nucleus(share), z, torch.arange(V))
        assert accepted.tolist() == [rank < count for rank in range(V)]


@pytest.mark.parametrize(
    ("drafted", "uniform", "accepting"),
    [
        (6, 0.999, [0.9]),  # its test p/q = 0.38 fails: only the rule accepts it
        (6, 0.3, [None, 0.9, 0.96]),
        (4, 0.999, []),  # the argmax, p = 0.62: a rule that accepted it would bend the law
        (4, 0.6, [None, 0.9, 0.96]),
    ],
)
def test_mars_above_zero_adds_rank_two_in_the_low_margin(drafted, uniform, accepting):
    z = torch.zeros((2, V))
    z[:, 4], z[:, 6] = 10.0, 9.5  # ratio 0.95
    q = torch.full((1, V), 1e-9, dtype=torch.float64)
    q[0, drafted] = 1.0
    noise = Noise(0, "a", 3, CPU, 1)
    noise.uniforms[:] = uniform
    for theta in (None, 0.9, 0.96):
        rule = None if theta is None else Mars(theta)
        draft = Draft(torch.tensor([drafted]), sequence(1), q)
        verifier = SpeculativeSampling(1.0, noise, rule)
        assert verifier.verify(z, draft, 0)[0] == ((0,) if theta in accepting else ())


def test_a_draw_has_a_probability_above_zero_whatever_is_rounded():
    weights = torch.tensor([[0.25, 0.0, 0.5, 0.0], [0.0, 0.25, 0.25, 0.0]], dtype=torch.float64)
    for uniform, wanted in ((0.0, [0, 1]), (0.4, [2, 1]), (1.0, [2, 2])):
        assert (
            inverse_cdf(weights, torch.full((2,), uniform, dtype=torch.float64)).tolist() == wanted
        )
    broken = torch.full_like(weights, torch.nan)
    assert inverse_cdf(broken, torch.full((2,), 0.5, dtype=torch.float64)).max() < 4


TREES = [sequence(1), sequence(5), symmetric(2, 3), spec_infer(5), UNEVEN]


def paths(tree):
    """All paths of a tree from the root on, the empty one first."""
    found = [()]
    for path in found:
        found += [(*path, child) for child in tree.children[path[-1] if path else ROOT]]
    return found


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: str(tree.parents))
def test_a_rule_accepts_the_longest_path_of_a_tree(tree):
    """Algorithm 1 of MARS on trees: of all paths whose tokens it accepts the longest, the first."""
    generator = torch.Generator().manual_seed(3)
    above, lengths, relaxed = torch.tensor(tree.parents) + 1, set(), 0
    for _ in range(120):
        z = 12 + torch.randn((len(tree) + 1, V), generator=generator)
        rank = torch.randint(3, (len(tree),), generator=generator)
        tokens = z[above].topk(3).indices.gather(1, rank[:, None])[:, 0]
        tokens[-1] = NOTHING
        first, second = z[above].topk(2).values.T
        accepts = (rank == 0) | ((rank == 1) & (second / first > 0.95))
        accepts[-1] = False
        key = [path for path in paths(tree) if all(accepts[node] for node in path)]
        longest = max(map(len, key))
        path, token, _ = RuleVerifier(Mars(0.95)).verify(z, Draft(tokens, tree), 0)
        assert path == min(one for one in key if len(one) == longest)
        assert token == int(z[path[-1] + 1 if path else 0].argmax())
        lengths.add(len(path))
        relaxed += any(rank[node] == 1 for node in path)
    assert len(lengths) > min(tree.depth, 2) - 1
    assert relaxed > 0 or len(tree) == 1


def test_the_token_after_a_draft_is_drawn_with_the_number_of_its_own_position():
    """However many drafted tokens come before it: what is chosen there does not depend on calls."""
    noise = Noise(3, "p", 40, CPU, 4)
    sure, flat = torch.full((3, 50), -1e9), torch.zeros((1, 50))
    sure[:, 7] = 0.0
    logits = torch.cat([sure, flat])
    draft = Draft(torch.tensor([7, 7, 7]), sequence(3), torch.softmax(sure.double(), 1))
    alone = InverseCdfSampler(1.0, noise, TOKEN)
    for position in range(0, 30, 3):
        path, token, _ = SpeculativeSampling(1.0, noise).verify(logits, draft, position)
        assert path == (0, 1, 2)
        assert token == int(alone(flat, position + 3, sequence(0))[0])
    assert len(np.unique(noise.uniforms[:, TOKEN])) == 41


def drawn_children(tree, q, generator):
    """Children drawn without replacement from (r, V), NOTHING where no token is left."""
    tokens = torch.full((len(tree),), NOTHING)
    for row, node in zip(q, verification.inner_nodes(tree), strict=True):
        children = tree.children[node]
        count = min(len(children), int((row > 0).sum()))
        drawn = torch.multinomial(row, count, generator=generator)
        tokens[list(children[:count])] = drawn
    return tokens


@pytest.mark.parametrize("rule", [None, Mars(0.5)], ids=str)
@pytest.mark.parametrize("scheme", ["drawn", "proposed", "most probable"])
@pytest.mark.parametrize("tree", [sequence(0), *TREES], ids=lambda tree: str(tree.parents))
def test_all_nodes_at_once_have_the_outcomes_of_one_after_the_other(
    tree, scheme, rule, monkeypatch
):
    """With few tokens of probability above 0, so that siblings run out and residuals vanish."""
    if scheme == "proposed" and not tree.is_chain:
        pytest.skip("what is proposed is a chain")
    generator = torch.Generator().manual_seed(5)
    lengths = set()
    for seed in range(60):  # twice each choice below
        noise = Noise(seed, "p", 12, CPU, len(tree))
        z = 2 * torch.randn((len(tree) + 1, V), generator=generator)
        z[:, 6:] = -torch.inf if seed % 2 else z[:, 6:]
        rows = len(verification.inner_nodes(tree)) if len(tree) else 0
        noisy = z[:1].repeat(rows, 1) + torch.randn((rows, V), generator=generator)
        noisy[:, :3] = -torch.inf if seed % 3 else noisy[:, :3]
        q = torch.softmax(noisy.double(), 1)
        if seed % 5 == 0:  # equal laws, where only rounding rejects
            q = torch.softmax(z[[node + 1 for node in verification.inner_nodes(tree)]].double(), 1)
            q = q[:rows]
        tokens = drawn_children(tree, q, generator) if rows else torch.zeros(0, dtype=torch.long)
        draft = Draft(tokens, tree, q if scheme == "drawn" else None)
        kind = SampledPath if scheme == "most probable" else SpeculativeSampling
        verifier = kind(1.0, noise, rule)
        wanted = verifier.verify(z, draft, seed % 3)
        with monkeypatch.context() as patch:
            patch.setattr(verification, "ALL_NODES_ON_CPU", not verification.ALL_NODES_ON_CPU)
            assert verifier.verify(z, draft, seed % 3) == wanted
        lengths.add(len(wanted[0]))
    assert len(lengths) > min(tree.depth, 1)
