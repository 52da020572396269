//! Parameter servers: consistency, staleness, quorums, robust aggregation, and the switch to
//! synchronous updates.

use super::limits::MAX_WORKERS;
use super::{
    AggregationRule, ByzantineAttack, EmbeddingRows, Family, Group, Interval, Placement, Recipe,
    RowSharding, SyncMode,
};
use crate::lint::{Lint, lints};
use crate::rule::{Rule, Rules};
use crate::topic::{choices, topic};
use crate::units::Seconds;
use crate::value_type::Bound::{Closed, Open};

const SERVER: &[&str] = &["parameter-server"];
const BOUNDED: &[&str] = &["bounded"];
const ELASTIC: &[&str] = &["elastic"];

/// Modes in which the vectors of several workers are aggregated at one place.
const AGGREGATING: &[&str] = &["gossip", "parameter-server"];

topic! {
    /// Settings of the parameter servers.
    pub struct Server at sync.server, among "sync" {
        /// Number of parameter servers, each with one shard of the weights. They are processes
        /// besides run.workers, with the ranks after the workers'.
        count as servers: usize = 1, integer(1, MAX_WORKERS), when("sync.mode", SERVER),
            inactive(0);

        /// Transfer of embedding rows.
        part rows: EmbeddingRows;

        /// Number of replicas of each server. With 1 a server acknowledges an update only after its
        /// replica has it, and the run survives the loss of either.
        replicas: usize = 0, integer(0, 1), when("sync.mode", SERVER), inactive(0);

        /// Consistency model: sync sums the gradients of all workers in every step; async applies
        /// each on arrival; bounded blocks fast workers so that no gradient misses more than
        /// sync.staleness updates (SSP); elastic closes an update with sync.quorum gradients or
        /// after sync.quorum_timeout_ms.
        consistency: Consistency = "async", when("sync.mode", SERVER);

        /// Number of gradients that close an update; the sum is scaled up for missing workers.
        quorum: usize = ("= run.workers - 1, or groups of them - 1, at least 1", default_quorum),
            integer(1, MAX_WORKERS), when("sync.consistency", ELASTIC);

        /// Milliseconds after its first gradient at which an update is closed without a quorum; 0
        /// waits for sync.quorum without limit.
        quorum_timeout as quorum_timeout_ms: Seconds = 0.0, float(Closed(0.0), Closed(3_600_000.0)),
            when("sync.consistency", ELASTIC);

        /// Treatment of a gradient that arrives after its update was closed: discard drops it, next
        /// counts it in the update that is open.
        late_gradients: LateGradients = "discard", when("sync.consistency", ELASTIC);

        /// Staleness bound: maximum number of updates between the pull of the weights and the
        /// update with their gradient. Below run.workers - 1 not all workers can compute at once.
        staleness: u64 = 10, integer(0, 1_000_000), when("sync.consistency", BOUNDED);

        /// Treatment of a gradient that would exceed the staleness bound: block makes its worker
        /// wait before the pull; discard lets no worker wait and drops the gradient.
        stale_gradients: StaleGradients = "block", when("sync.consistency", BOUNDED);

        /// How the staleness bound changes: fixed is constant; linear reaches sync.final_staleness
        /// at the end; curvature is sync.staleness_constant / (learning rate * sync.curvature), at
        /// most sync.staleness; oscillation halves it when gradients oscillate and grow.
        staleness_rule: StalenessRule = "fixed", when("sync.consistency", BOUNDED);

        /// Staleness bound at the end of the run.
        final_staleness: u64 = 0, integer(0, 1_000_000), when("sync.staleness_rule", &["linear"]);

        /// Largest curvature of the loss, as `lockstep inspect --curvature` measures it.
        curvature: f64 = 1.0, float(Open(0.0), Closed(1e12)),
            when("sync.staleness_rule", &["curvature"]);

        /// Numerator of the curvature rule. Gradient descent is stable up to about 1.57.
        staleness_constant: f64 = 1.0, float(Open(0.0), Closed(1e6)),
            when("sync.staleness_rule", &["curvature"]);

        /// Weight of a gradient of staleness t: none is 1, inverse is 1/(1+t), exponential is
        /// sync.staleness_decay to the power of t.
        staleness_weight: StalenessWeight = "none", when("sync.mode", SERVER);

        /// Factor of a gradient's weight per missed update.
        staleness_decay: f64 = 0.9, float(Open(0.0), Open(1.0)),
            when("sync.staleness_weight", &["exponential"]);

        /// Fraction of the run's steps after which updates are synchronous, as with
        /// sync.consistency = "sync"; 1 never switches.
        switch_to_sync_after: f64 = 1.0, float(Closed(0.0), Closed(1.0)), when("sync.mode", SERVER),
            in_identity_unless_default();

        /// Ratio of a worker's loss to the mean of its last 20 at which updates become synchronous
        /// from the next step on; 0 never switches.
        switch_on_loss_spike: f64 = 0.0, float(Closed(0.0), Closed(1e6)), when("sync.mode", SERVER),
            in_identity_unless_default();

        /// Rule that aggregates the gradients of an update or, with gossip, the weights of a worker
        /// and its neighbours; all but mean tolerate Byzantine workers.
        aggregation: AggregationRule = "mean", when("sync.mode", AGGREGATING),
            in_identity_when(is_byzantine);

        /// Number of Byzantine workers or neighbours that the rule tolerates: values trimmed on
        /// either side by trimmed-mean, f of krum.
        assumed_byzantine: usize = 1, integer(0, MAX_WORKERS),
            when("sync.aggregation", &["trimmed-mean", "krum"]);

        /// Norm to which a server clips each worker's gradient or, with gossip, a worker clips the
        /// difference of a neighbour's weights to its own, before the mean; 0 does not clip.
        gradient_clip: f64 = 0.0, float(Closed(0.0), Closed(1e9)), when("sync.mode", AGGREGATING),
            in_identity_when(is_byzantine);

        /// Number of simulated Byzantine workers, the last ranks, for robustness tests.
        byzantine: usize = 0, integer(0, MAX_WORKERS), when("sync.mode", AGGREGATING),
            in_identity_when(is_byzantine);

        /// Attack of the simulated Byzantine workers: sign-flip sends the negated vector times ten,
        /// noise sends Gaussian noise, stale repeats the first gradient or weight difference.
        attack: ByzantineAttack = "sign-flip", when("sync.mode", AGGREGATING),
            in_identity_when(is_byzantine);

        /// Whether servers reset the optimizer state when the run resumes from a checkpoint, since
        /// momentum from before the interruption is stale.
        resets_momentum as reset_momentum: bool = false, when("sync.mode", SERVER);

        /// Number of versions by which pulls are delayed on purpose, to study staleness: with one
        /// worker every gradient has exactly this staleness.
        read_delay: u64 = 0, integer(0, 1_000_000), when("sync.mode", SERVER);
    }
}

/// All but one of the workers or groups that push.
fn default_quorum(recipe: &Recipe) -> usize {
    // Outside elastic consistency the value must not depend on the number of workers.
    if recipe.sync.server.consistency != Consistency::Elastic {
        return 1;
    }
    recipe.num_pushers().saturating_sub(1).max(1)
}

/// Recipes without these settings keep the hash they had before the settings existed.
fn is_byzantine(recipe: &Recipe) -> bool {
    recipe.sync.has_byzantine_settings()
}

choices! {
    /// Consistency model of the parameter servers.
    Consistency {
        /// Bulk synchronous: every update has the gradients of all workers.
        Sync = "sync",
        /// Asynchronous: every gradient is applied on arrival.
        Async = "async",
        /// Stale synchronous parallel (Ho et al. 2013): staleness is bounded.
        Bounded = "bounded",
        /// An update closes with a quorum of gradients or after a timeout.
        Elastic = "elastic",
    }

    /// Treatment of gradients beyond the staleness bound.
    StaleGradients {
        /// The worker waits before it pulls.
        Block = "block",
        /// No worker waits; the server discards the gradient.
        Discard = "discard",
    }

    /// How the staleness bound changes during the run.
    StalenessRule {
        /// Constant.
        Fixed = "fixed",
        /// Linear in the step.
        Linear = "linear",
        /// Inverse to learning rate times curvature.
        Curvature = "curvature",
        /// Halved when successive gradients oscillate.
        Oscillation = "oscillation",
    }

    /// Treatment of a gradient that arrives after its update was closed.
    LateGradients {
        /// Counted in the update that is open.
        Next = "next",
        /// Discarded.
        Discard = "discard",
    }

    /// Weight of a gradient of staleness t.
    StalenessWeight {
        /// 1.
        None = "none",
        /// 1 / (1 + t).
        Inverse = "inverse",
        /// `sync.staleness_decay` to the power of t.
        Exponential = "exponential",
    }
}

impl Recipe {
    /// Number of servers, each with one shard of the weights.
    pub fn num_servers(&self) -> usize {
        if self.sync.mode == SyncMode::ParameterServer { self.sync.server.count } else { 0 }
    }

    /// Number of workers that pull and push: the first of every group, or all.
    pub fn num_pushers(&self) -> usize {
        self.run.workers / self.sync.group_workers.max(1)
    }

    /// Number of server processes, replicas included.
    pub fn num_server_ranks(&self) -> usize {
        self.num_servers() * (1 + self.sync.server.replicas)
    }

    /// Groups of ranks with the same shard of the weights; the run survives the loss of all but
    /// one rank of a group. Empty without replicas.
    pub fn server_replica_groups(&self) -> Vec<Vec<usize>> {
        let (workers, servers, copies) =
            (self.run.workers, self.num_servers(), 1 + self.sync.server.replicas);
        let group = |server| (0..copies).map(|copy| workers + copy * servers + server).collect();
        if copies == 1 { Vec::new() } else { (0..servers).map(group).collect() }
    }

    /// World sizes that an attempt of the run may have, ascending: [`Self::worker_counts`] plus the
    /// servers.
    pub fn rank_counts(&self) -> Vec<usize> {
        let servers = self.num_server_ranks();
        self.worker_counts().into_iter().map(|workers| workers + servers).collect()
    }

    /// Number of ranks: workers first, then servers.
    pub fn num_ranks(&self) -> usize {
        self.run.workers + self.num_server_ranks()
    }
}

pub(crate) const RULES: Rules = Rules::new(&[
    // Settings that parameter servers do not support.
    Rule::conflict(&["sync.mode"], "all-reduce", |c, r| {
        let has_tensor_norms = r.optim.name.needs_tensor_norms();
        let is_special = |group: &Group| {
            let is_frozen = group.frozen || group.freeze_after.or(group.unfreeze_at).is_some();
            group.clip.is_some() || is_frozen
        };
        c.because("saves checkpoints by steps, not by time")
            .with("checkpoint.interval", 0, r.checkpoint.interval != Interval::Never)
            .because("keeps different versions of the weights on workers")
            .with("run.check_replicas_every", 0, r.run.check_replicas_every > 0)
            .because("divides gradients by a number of targets that all workers know")
            .with("data.placement", "\"shared\"", r.data.placement == Placement::Local)
            .because("updates flat shards, without the norms of tensors")
            .with("optim.name", "\"adamw\"", has_tensor_norms)
            .because("clips and trains all parameters together")
            .with("optim.groups", "[]", r.optim.groups.iter().any(is_special))
            .with("finetune.lora_rank", 0, r.model.lora.is_on())
            .because("needs a constant batch")
            .with("train.batch_schedule", "[]", !r.train.batch_schedule.is_empty());
    }),
    // A tied output projection needs all rows in every step, and a problem has no embedding.
    Rule::new(&["sync.sparse_rows", "model.family", "model.tied"], |c| {
        let (is_sparse, family) = (c.sync.server.rows.sparse, c.model.family);
        if is_sparse && family.is_problem() {
            let rule =
                format!("needs an embedding, which model.family = \"{family}\" does not have");
            return Some(c.error_about(&c.keys[..2], rule, "try false"));
        }
        let rule = "needs an embedding that is not tied to the output projection";
        let fix = "try model.tied = false, or sync.sparse_rows = false";
        let involved = ["sync.sparse_rows", "model.tied"];
        (is_sparse && c.model.tied).then(|| c.error_about(&involved, rule, fix))
    }),
    // Only sparse transfers can skip cached rows.
    Rule::new(&["sync.row_cache", "sync.sparse_rows"], |c| {
        let rows = &c.sync.server.rows;
        let rule = "needs sparse transfers of the embedding";
        c.refuse(rows.cache > 0 && !rows.sparse, rule, "sync.sparse_rows = true")
    }),
    // Replicated rows need sparse transfers and another server.
    Rule::new(&["sync.replicated_rows", "sync.sparse_rows", "sync.servers"], |c| {
        let Server { rows, count, .. } = &c.sync.server;
        let (rule, fix) = if rows.sparse {
            ("needs replicas on other servers, and there are none", "sync.servers = 2")
        } else {
            ("needs sparse transfers of the embedding", "sync.sparse_rows = true")
        };
        c.refuse(rows.replicated > 0 && (!rows.sparse || *count < 2), rule, fix)
    }),
    // Workers and servers together fit into one group.
    Rule::new(&["sync.servers", "run.workers"], |c| {
        let (workers, most) = (c.run.workers, MAX_WORKERS as usize);
        let rule = format!("and run.workers = {workers} are more than {most} ranks together");
        let fix = match most.saturating_sub(workers) {
            0 => format!("1 and run.workers = {}", most - 1),
            left => left.to_string(),
        };
        c.refuse(c.num_ranks() > most, rule, fix)
    }),
    // A delayed pull is stale by the delay.
    Rule::new(&["sync.read_delay", "sync.staleness", "sync.consistency"], |c| {
        let Server { consistency, read_delay, staleness, .. } = c.sync.server;
        let is_broken = consistency == Consistency::Bounded && read_delay > staleness;
        c.refuse(is_broken, format!("is more than sync.staleness = {staleness}"), staleness)
    }),
    // The quorum is at most the number of workers that push.
    Rule::new(&["sync.quorum", "run.workers", "sync.group_workers", "sync.consistency"], |c| {
        let Server { consistency, quorum, .. } = c.sync.server;
        let (most, size) = (c.num_pushers(), c.sync.group_workers);
        let groups = if size > 1 { format!(" in groups of {size}") } else { String::new() };
        let rule = format!("is more than run.workers = {}{groups}", c.run.workers);
        c.refuse(consistency == Consistency::Elastic && quorum > most, rule, most)
    }),
    // An aggregation rule tolerates a limited number of Byzantine workers.
    Rule::new(&["sync.assumed_byzantine", "run.workers", "sync.aggregation"], |c| {
        let Server { consistency, aggregation, quorum, assumed_byzantine, .. } = c.sync.server;
        let num_gradients = match consistency {
            Consistency::Elastic => quorum.min(c.num_pushers()),
            _ => c.num_pushers(),
        };
        let most = aggregation.max_byzantine(num_gradients)?;
        let rule = format!(
            "is more than sync.aggregation = \"{aggregation}\" tolerates among {num_gradients} \
             gradients"
        );
        let fix = match most {
            0 => "sync.aggregation = \"median\"".to_owned(),
            most => most.to_string(),
        };
        c.refuse(assumed_byzantine > most, rule, fix)
    }),
    // At least one worker is honest.
    Rule::new(&["sync.byzantine", "run.workers"], |c| {
        let (byzantine, workers) = (c.sync.server.byzantine, c.run.workers);
        let rule = format!("leaves no honest worker of run.workers = {workers}");
        c.refuse(byzantine > 0 && byzantine >= workers, rule, workers.saturating_sub(1))
    }),
    // A Byzantine gradient inside a group's sum corrupts the whole group.
    Rule::new(&["sync.byzantine", "sync.group_workers"], |c| {
        let is_broken = c.sync.server.byzantine > 0 && c.sync.group_workers > 1;
        let rule = "cannot be attributed inside the sums of worker groups";
        c.refuse(is_broken, rule, "sync.group_workers = 0")
    }),
])
.when(&["sync.mode"], is_served);

pub(crate) const ROBUST_RULES: Rules = Rules::new(&[
    // Robust aggregation needs the gradients of several workers at once.
    Rule::new(&["sync.aggregation", "sync.byzantine", "sync.consistency"], |c| {
        let consistency = c.sync.server.consistency;
        let is_single = matches!(consistency, Consistency::Async | Consistency::Bounded);
        let rule = "needs the gradients of several workers per update";
        c.refuse(is_single, rule, "sync.consistency = \"sync\"")
    }),
])
.when(&["sync.mode"], |r| is_served(r) && r.sync.has_byzantine_settings());

/// Largest momentum that tolerates stale gradients.
const MAX_STALE_MOMENTUM: f64 = 0.5;
/// Largest number of workers per server.
const MAX_WORKERS_PER_SERVER: usize = 10;

pub(crate) const DELAY_LINTS: &[Lint] = lints! {
    "delayed-momentum": "momentum amplifies the staleness of delayed gradients";
        if "momentum or beta1 > 0.5 with sync.gradient_delay = 1, or with several workers of \
            servers and sync.consistency = async or bounded";
        advice "lower it to 0.5 or less, or lower optim.lr";
        |r| let ((name, momentum), cause) = (r.optim.momentum_setting()?, delay(r)?);
            when momentum > MAX_STALE_MOMENTUM =>
                "optim.{name} = {momentum} with {cause} lowers the largest stable learning rate";
};

/// The setting that delays gradients, if there is one.
fn delay(recipe: &Recipe) -> Option<String> {
    let consistency = recipe.sync.server.consistency;
    let is_free = matches!(consistency, Consistency::Async | Consistency::Bounded);
    if recipe.sync.gradient_delay > 0 {
        return Some("sync.gradient_delay = 1".to_owned());
    }
    (recipe.num_servers() > 0 && is_free && recipe.run.workers > 1)
        .then(|| format!("sync.consistency = \"{consistency}\""))
}

pub(crate) const LINTS: &[Lint] = lints! {
    "unstable-delay": "gradients are so stale that descent along the largest curvature diverges";
        if "optim.lr x staleness / (1 - momentum) >= 1 on a quadratic, whose curvature is 1";
        advice "lower optim.lr or sync.staleness";
        |r| let (lr, staleness) = (r.optim.lr, staleness(r)?);
            let momentum = r.optim.momentum_setting().map_or(0.0, |(_, value)| value);
            let reach = lr * staleness as f64 / (1.0 - momentum);
            when r.model.family == Family::Quadratic && reach >= 1.0 =>
                "optim.lr = {lr} with gradients of staleness {staleness} diverges";

    "busy-servers": "every step of every worker moves the whole model through the servers twice";
        if "run.workers > 10 x sync.servers"; advice "raise sync.servers, or use all-reduce";
        |r| let (workers, servers) = (r.run.workers, r.num_servers());
            when servers > 0 && r.num_pushers() > MAX_WORKERS_PER_SERVER * servers =>
                "sync.servers = {servers} is the bottleneck of run.workers = {workers}";

    "overloaded-server": "frequent tokens often have low ids, and one server owns all of them";
        if "sync.sparse_rows with sync.row_sharding = range and several servers";
        advice "use sync.row_sharding = \"hash\", or sync.row_cache";
        |r| let (servers, by) = (r.num_servers(), r.sync.server.rows.sparse_sharding()?);
            when servers > 1 && by == RowSharding::Range =>
                "sync.row_sharding = \"range\" gives one of {servers} servers most of the load";

    "no-rare-rows": "a step has as many tokens as the embedding has rows, so most rows are \
        sent anyway";
        if "sync.sparse_rows with model.vocab or more tokens per worker and step";
        advice "leave it off, or use more workers";
        |r| let (vocab, tokens) = (r.model.vocab, r.tokens_per_step() / r.run.workers);
            let is_sparse = is_served(r) && r.sync.server.rows.sparse;
            when is_sparse && r.model.family.is_text() && tokens >= vocab =>
                "sync.sparse_rows = true with {tokens} tokens for {vocab} rows";

    "row-cache-momentum": "cached rows are stale, and momentum amplifies the staleness of \
        frequent rows";
        if "sync.row_cache > 0 with momentum or beta1 > 0.5";
        advice "lower it to 0.5 or less, or lower sync.row_cache_every";
        |r| let ((name, value), cache) = (r.optim.momentum_setting()?, r.sync.server.rows.cache);
            when is_served(r) && cache > 0 && value > MAX_STALE_MOMENTUM =>
                "optim.{name} = {value} amplifies the staleness of sync.row_cache = {cache}";
};

fn is_served(recipe: &Recipe) -> bool {
    recipe.sync.mode == SyncMode::ParameterServer
}

/// Staleness of gradients where servers do not wait for all workers.
fn staleness(recipe: &Recipe) -> Option<u64> {
    let server = &recipe.sync.server;
    let others = recipe.num_pushers() as u64 - 1;
    let found = match server.consistency {
        _ if !is_served(recipe) => return None,
        Consistency::Sync | Consistency::Elastic => 0,
        Consistency::Async => others,
        Consistency::Bounded => others.min(server.staleness),
    };
    Some(found.max(server.read_delay)).filter(|staleness| *staleness > 0)
}
