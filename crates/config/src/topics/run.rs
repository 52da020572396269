//! Workers, threads and transport, and elastic runs, whose number of workers changes between
//! attempts.
//!
//! Workers join and leave in whole replicas: pipeline and tensor degrees are constant and only the
//! data-parallel degree changes, on which the bits of the result do not depend.

use std::time::Duration;

use super::device::DeviceChoice;
use super::limits::MAX_WORKERS;
use super::{Placement, Recipe};
use crate::error::ConfigError;
use crate::field::Field;
use crate::lint::{Lint, lints};
use crate::rule::{Rule, RuleContext, Rules};
use crate::topic::{choices, entry, topic};
use crate::units::Seconds;
use crate::value::Value;
use crate::value_type::Bound::{Closed, Open};
use crate::value_type::{MAX_STEPS, ValueType};

topic! {
    /// Workers, threads, transport and device. Changes no bit of the result, except that each class
    /// of devices has its own rounding.
    pub struct Run at run, table "run", layout() {
        /// Number of workers: parallel.data times parallel.pipeline times parallel.tensor. With
        /// {min, max} the run is elastic: it starts with max, continues with fewer after permanent
        /// losses, and grows again when workers return.
        workers: usize = (
            "= 2, or numerics.invariant_up_to where that is less",
            |recipe| recipe.num_leaves().min(2)
        ), of(ValueType::OrTable(&ValueType::integers(1, MAX_WORKERS), Elastic::CELLS)),
            access(|r| Some(workers_value(r)), set_workers);

        /// Range of workers of an elastic run; `workers` is then its maximum.
        field elastic: Option<Elastic>;

        /// Compute threads per worker; 0 divides the cores of the machine among its workers.
        threads: usize = 0, integer(0, 1024);

        /// Whether each worker is a process or a thread of one process.
        isolation: Isolation = "processes";

        /// Transport between workers; auto uses shared memory within a host and TCP between hosts.
        /// threads needs run.isolation = threads, shm needs processes. mpi moves the data by the
        /// cluster's own MPI, under its launcher (mpirun).
        transport: TransportChoice = "auto";

        /// Whether TCP traffic between workers is encrypted; workers authenticate with the run's
        /// secret in any case.
        encrypt: bool = false;

        /// Seconds after which a worker stops waiting for another and reports it as lost.
        deadline: Seconds = 60.0, float(Open(0.0), Closed(86_400.0));

        /// Steps between two checks that the weights of all replicas are identical; 0 never checks.
        check_replicas_every: u64 = 0, integer(0, MAX_STEPS);

        /// Instruction set of the kernels; auto uses the widest available, and all give the same
        /// bits.
        isa: IsaChoice = "auto";

        /// Device of the model. auto uses a CUDA device if training can run on it, else the CPU;
        /// cuda gives the workers of a host its CUDA devices in turn, cuda:N all of them device N.
        device: DeviceChoice = "auto";

        /// Whether a CUDA device queues the operations of a pass that repeats as a CUDA graph, by
        /// one call; without effect on the CPU.
        graphs: bool = true;

        /// Run folder; empty creates a new one under runs.
        dir: String = "";

        /// Whether the final weights are saved with the state needed to resume: optimizer, step,
        /// data position.
        save_optimizer: bool = true;

        /// Maximum number of restarts from the newest checkpoint after a worker is lost; 0 never
        /// restarts. Needs run.isolation = processes. In an elastic run, the number per worker
        /// before the run continues without it.
        restarts: u64 = 0, integer(0, 1_000_000);

        /// Seconds after which an elastic run tries a lost worker again; doubled each time it is
        /// lost again at once.
        rejoin: Seconds = 60.0, float(Open(0.0), Closed(31_536_000.0));
    }
}

entry! {
    /// Range of the number of workers.
    #[derive(Copy, Eq)]
    pub struct Elastic {
        /// Minimum; with fewer the run fails.
        min: usize = required, integer(1, MAX_WORKERS);
        /// Maximum, with which the run starts.
        max: usize = required, integer(1, MAX_WORKERS);
    }
}

fn workers_value(recipe: &Recipe) -> Value {
    let Run { workers, elastic, .. } = &recipe.run;
    elastic.as_ref().map_or_else(|| workers.to_value(), Elastic::to_value)
}

fn set_workers(recipe: &mut Recipe, value: &Value) {
    let is_range = matches!(value, Value::Table(_));
    recipe.run.elastic = is_range.then(|| Elastic::from_value(value));
    let max = recipe.run.elastic.map(|range| range.max);
    recipe.run.workers = max.unwrap_or_else(|| usize::from_value(value));
}

choices! {
    /// Isolation of workers.
    Isolation {
        /// Each worker is a process.
        Processes = "processes",
        /// All workers are threads of one process.
        Threads = "threads",
    }

    /// Transport between workers.
    TransportChoice {
        /// Shared memory within a host, TCP between hosts.
        Auto = "auto",
        /// Memory of the common process.
        Threads = "threads",
        /// Shared memory between the processes of a host.
        Shm = "shm",
        /// TCP, within a host too.
        Tcp = "tcp",
        /// The cluster's MPI, for processes that its launcher started.
        Mpi = "mpi",
    }

    /// Instruction set of the kernels.
    IsaChoice {
        /// The widest that the machine supports.
        Auto = "auto",
        /// 512-bit vectors.
        Avx512 = "avx512",
        /// 256-bit vectors with fused multiply-add.
        Avx2 = "avx2",
        /// Plain Rust, any machine.
        Portable = "portable",
    }
}

impl TransportChoice {
    /// Whether ranks exchange messages only, even on one host.
    pub fn has_messages_only(self) -> bool {
        matches!(self, Self::Tcp | Self::Mpi)
    }
}

impl Run {
    /// Compute threads of a worker on a machine with this number of cores and workers.
    pub fn num_threads(&self, num_cores: usize, num_local_workers: usize) -> usize {
        match self.threads {
            0 => (num_cores / num_local_workers.max(1)).max(1),
            threads => threads,
        }
    }

    /// Deadline of a wait for another worker.
    pub fn deadline(&self) -> Duration {
        Duration::from_secs_f64(self.deadline.0)
    }
}

impl Recipe {
    /// Numbers of workers that an attempt of the run may have, ascending: one if it is fixed, else
    /// all in the range that make whole replicas.
    pub fn worker_counts(&self) -> Vec<usize> {
        let Some(Elastic { min, max }) = self.run.elastic else { return vec![self.run.workers] };
        let each = self.parallel.workers_per_replica();
        (min..=max).filter(|size| size.is_multiple_of(each)).collect()
    }

    /// The recipe of an attempt with this number of workers: only the data-parallel degree differs.
    ///
    /// # Panics
    /// If [`Self::worker_counts`] does not contain the number.
    pub fn with_workers(&self, workers: usize) -> Self {
        assert!(self.worker_counts().contains(&workers), "{workers} workers");
        let mut recipe = self.clone();
        if self.run.elastic.is_some() {
            recipe.run.elastic = None;
            recipe.run.workers = workers;
            recipe.parallel.data = workers / self.parallel.workers_per_replica();
            recipe.emulate.links.retain(|link| link.ranks.iter().all(|rank| *rank < workers));
            recipe.emulate.slow.retain(|slow| slow.rank < workers);
        }
        recipe
    }
}

pub(crate) const RULES: Rules = Rules::new(&[
    Rule::new(
        &["run.workers", "numerics.invariant_up_to", "parallel.pipeline", "parallel.tensor"],
        workers_fit_leaves,
    ),
    // The threads transport needs one process, and shared memory needs several.
    Rule::new(&["run.transport", "run.isolation"], |c| {
        let isolation = c.run.isolation;
        let needed = match (c.run.transport, isolation) {
            (TransportChoice::Threads, Isolation::Processes) => Isolation::Threads,
            (TransportChoice::Shm | TransportChoice::Mpi, Isolation::Threads) => {
                Isolation::Processes
            }
            _ => return None,
        };
        let rule = format!("does not connect workers with run.isolation = \"{isolation}\"");
        c.refuse(true, rule, format!("\"auto\" or run.isolation = \"{needed}\""))
    }),
    // What MPI moves is outside of the streams that are encrypted.
    Rule::new(&["run.encrypt", "run.transport"], |c| {
        let is_broken = c.run.encrypt && c.run.transport == TransportChoice::Mpi;
        let rule = "is not possible with run.transport = \"mpi\", whose library moves the data";
        c.refuse(is_broken, rule, "false or run.transport = \"tcp\"")
    }),
    // A failed thread takes its process down, so only processes can be restarted.
    Rule::new(&["run.restarts", "run.isolation"], |c| {
        let is_broken = c.run.restarts > 0 && c.run.isolation != Isolation::Processes;
        c.refuse(is_broken, "cannot restart threads", "0 or run.isolation = \"processes\"")
    }),
    // Minimum and maximum are whole replicas, whose pipeline and tensor degrees are constant.
    Rule::new(&["run.workers", "parallel.pipeline", "parallel.tensor"], |c| {
        let Elastic { min, max } = c.run.elastic?;
        let each = c.parallel.workers_per_replica();
        let advice = |min: usize| format!("try {{ min = {min}, max = {max} }}");
        if min > max {
            return Some(c.error_about(&["run.workers"], "has a min above its max", advice(max)));
        }
        let is_broken = !min.is_multiple_of(each) && max.is_multiple_of(each);
        let rule = format!("may leave {min} workers, and a replica takes {each}");
        is_broken.then(|| c.error(rule, advice(min.next_multiple_of(each))))
    }),
    // Settings for a fixed number of workers are incompatible with an elastic run.
    Rule::new(&["run.workers"], |c| {
        let Elastic { max, .. } = c.run.elastic?;
        let (key, better) = if c.run.isolation == Isolation::Threads {
            ("run.isolation", "\"processes\"")
        } else if !c.parallel.leaf_shares.is_empty() {
            ("parallel.leaf_shares", "\"\"")
        } else if c.data.placement == Placement::Local {
            ("data.placement", "\"shared\"")
        } else if !c.checkpoint.is_on() {
            ("checkpoint.interval", "\"auto\"")
        } else {
            return None;
        };
        let rule = format!("cannot be a range with {key} = {}", c.text_of(key));
        let fix = format!("try {max} or {key} = {better}");
        c.all_valid(&[key]).then(|| c.error_about(&["run.workers", key], rule, fix))
    }),
]);

/// A replica computes whole leaves, at least one.
fn workers_fit_leaves(c: &RuleContext<'_>) -> Option<ConfigError> {
    let (workers, leaves) = (c.run.workers, c.num_leaves());
    let each = c.parallel.workers_per_replica();
    let replicas = workers / each;
    if replicas <= leaves {
        return None;
    }
    if each > 1 {
        let rule = format!(
            "makes {replicas} replicas of {each} workers each, more than \
             numerics.invariant_up_to = {leaves}"
        );
        return c.refuse(true, rule, leaves * each);
    }
    let more_leaves = workers.next_power_of_two();
    let depends = ["parallel.data", "parallel.leaf_shares"].iter().any(|name| c.is_set(name));
    let all_valid = c.all_valid(&["train.batch", "train.microbatch"]);
    // If the batch breaks a rule of its own, its fix assumes the present number of leaves.
    let enough_microbatches = c.train.batch.is_multiple_of(c.train.microbatch_size * more_leaves);
    let fix = if all_valid && !depends && enough_microbatches {
        format!("try {leaves} or numerics.invariant_up_to = {more_leaves}")
    } else {
        format!("try {leaves}")
    };
    let rule = format!("is more than numerics.invariant_up_to = {leaves}");
    Some(c.error_about(&c.keys[..2], rule, fix))
}

/// Sizes above 1 of groups of consecutive workers, such as `2, 4`; `0` where there is none.
pub(super) fn group_sizes(most: usize, fits: impl Fn(usize) -> bool) -> String {
    let sizes: Vec<String> =
        (2..=most).filter(|size| fits(*size)).map(|size| size.to_string()).collect();
    if sizes.is_empty() { "0".to_owned() } else { sizes.join(", ") }
}

/// Largest number of workers that a small model keeps busy.
const MAX_WORKERS_OF_SMALL: usize = 4;
/// Parameters of a small model.
const SMALL_PARAMS: usize = 1_000_000;
/// Longest pause of a healthy worker in seconds.
const MIN_DEADLINE: f64 = 5.0;
/// Longest useful deadline in seconds.
const MAX_DEADLINE: f64 = 600.0;
/// Steps after which replicas should have been compared.
const STEPS_WITHOUT_CHECK: u64 = 10_000;

pub(crate) const LINTS: &[Lint] = lints! {
    "small-model": "many workers train a small model and mostly communicate";
        if "run.workers > 4 with fewer than 1,000,000 parameters of a text model";
        advice "use 4 workers or fewer";
        |r| let (workers, params) = (r.run.workers, r.model.num_params()?);
            when workers > MAX_WORKERS_OF_SMALL && params < SMALL_PARAMS =>
                "run.workers = {workers} train a model of {params} parameters";
};

pub(crate) const DEADLINE_LINTS: &[Lint] = lints! {
    "short-deadline": "a paused worker is reported as lost";
        if "run.deadline < 5 s, with several workers"; advice "try 60";
        |r| let seconds = r.run.deadline.0;
            when r.run.workers > 1 && seconds < MIN_DEADLINE =>
                "run.deadline = {seconds} reports a paused worker as lost";

    "long-deadline": "a lost worker is detected late";
        if "run.deadline > 600 s, with several workers"; advice "try 60";
        |r| let seconds = r.run.deadline.0;
            when r.run.workers > 1 && seconds > MAX_DEADLINE =>
                "run.deadline = {seconds} detects a lost worker late";
};

pub(crate) const STATE_LINTS: &[Lint] = lints! {
    "unchecked-replicas": "a long run never compares its replicas";
        if "run.check_replicas_every = 0 with 10,000 steps or more and several workers";
        advice "compare every 1000 steps";
        |r| let (steps, is_checked) = (r.train.steps, r.run.check_replicas_every > 0);
            when r.run.workers > 1 && !is_checked && steps >= STEPS_WITHOUT_CHECK =>
                "run.check_replicas_every = 0 does not detect a faulty machine in {steps} steps";

    "no-optimizer-state": "the optimizer state is not saved, so the run cannot be resumed";
        if "run.save_optimizer = false"; advice "leave it on unless disk is short";
        |r| when !r.run.save_optimizer =>
                "run.save_optimizer = false saves no state to resume from";
};
