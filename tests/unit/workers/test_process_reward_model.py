import math

from training_cases import GROUPS, SAMPLES

from ppojob_trainer.rpc.messages.training import Update
from ppojob_trainer.workers.batch_rows import BatchRows
from ppojob_trainer.workers.reference import Reference
from ppojob_trainer.workers.trained_models import ProcessRewardModel


def test_rows_without_an_outcome_teach_nothing(make_learner, rows: BatchRows, copies, is_equal):
    """It ends as one that has never seen them, and still rewards their tokens."""
    outcomes = [float(row % 2) for row in range(GROUPS * SAMPLES)]
    found = []
    for is_hidden in (False, True):
        learner = make_learner()
        learner.restore(None, [], 10)
        model = ProcessRewardModel(learner, beta=0.5)
        Reference(learner.engine, learner.resident, "critic_ref_logprobs").forward(rows)
        model.forward(rows)
        assert not rows.mine.process_rewards.any(), "nothing has been learnt"
        if is_hidden:
            rows.mine.mask[rows.mine.token_rows == 1] = False
        left = outcomes if is_hidden else [outcomes[0], math.nan, *outcomes[2:]]
        model.update(rows, Update("critic", [0, 2, 1], outcomes=left))
        model.forward(rows)
        found.append(copies(learner.model.named_parameters()))
        is_rewarded = rows.mine.process_rewards != 0
        assert is_rewarded[rows.mine.mask].float().mean() > 0.9
    assert is_equal(*found)
