import torch

from ppojob_trainer.algorithms.distillation import teacher_advantages


def test_the_policy_gradient_is_that_of_the_kl_in_expectation_over_the_token():
    """Every token of the vocabulary once, each as often as the policy draws it."""
    torch.manual_seed(0)
    logits, teacher = torch.randn(2, 13, dtype=torch.float64)
    logits.requires_grad_()
    log_p, log_t = logits.log_softmax(0), teacher.log_softmax(0)
    mask = torch.ones(13, dtype=torch.bool)
    found = teacher_advantages(log_p.detach(), log_t, mask)
    surrogate = -(log_p.detach().exp() * found.advantages * log_p).sum()
    kl = (log_p.exp() * (log_p - log_t)).sum()
    ours, theirs = (torch.autograd.grad(of, logits, retain_graph=True)[0] for of in (surrogate, kl))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    assert not found.advantages.requires_grad


def test_a_token_that_is_not_trained_says_nothing():
    old, teacher = torch.tensor([-1.0, -2.0]), torch.tensor([-3.0, torch.nan])
    found = teacher_advantages(old, teacher, torch.tensor([True, False]))
    assert found.advantages.tolist() == found.returns.tolist() == [-2.0, 0.0]


def test_what_a_token_says_is_bounded_on_both_sides():
    old, teacher = torch.tensor([-1.0, -9.0, -2.0]), torch.tensor([-9.0, -1.0, -2.5])
    found = teacher_advantages(old, teacher, torch.ones(3, dtype=torch.bool), 2.0)
    assert found.advantages.tolist() == found.returns.tolist() == [-2.0, 2.0, -0.5]
