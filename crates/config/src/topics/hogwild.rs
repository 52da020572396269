//! Hogwild: lock-free SGD of the threads of one worker (Recht et al. 2011).

use super::train::batch_divides;
use super::{OptimName, SyncMode};
use crate::rule::{Rule, Rules};

pub(crate) const RULES: Rules = Rules::new(&[
    // The threads share the memory of one worker.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        c.because("updates the memory of one worker with sync.threads")
            .with("run.workers", 1, r.run.workers > 1)
            .with("parallel.zero", 0, r.parallel.zero > 0);
    }),
    // The threads have equal numbers of micro-batches.
    Rule::new(&["train.batch", "sync.threads", "train.microbatch"], |c| {
        batch_divides(c, "sync.threads", c.sync.threads)
    }),
    // A lock-free update is an independent addition to each weight.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        c.because("supports plain SGD updates only")
            .with("optim.name", "\"sgd\"", r.optim.name != OptimName::Sgd)
            .with("optim.weight_decay", "0.0", r.optim.weight_decay > 0.0)
            .with("optim.groups", "[]", !r.optim.groups.is_empty())
            .with("finetune.lora_rank", 0, r.model.lora.is_on())
            .with("train.batch_schedule", "[]", !r.train.batch_schedule.is_empty());
    }),
])
.when(&["sync.mode"], |r| r.sync.mode == SyncMode::Hogwild);
