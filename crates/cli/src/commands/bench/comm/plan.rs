//! The cases of a measurement, checked before anything starts.

use super::Arguments;
use crate::failure::Failure;
use lockstep_bench::{Buffers, Case, Collective};
use lockstep_comm::Dtype;
use lockstep_config::units::Bytes;
use lockstep_config::{Emulate, Sources};
use lockstep_platform::World;
use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::{Algorithm, Medium, Topology};
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// Largest number of ranks.
const MAX_RANKS: usize = 64;

/// Transport between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transport {
    Threads,
    Shm,
    Tcp,
}

impl Transport {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// Cases and ranks of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) num_ranks: usize,
    pub(super) transport: Transport,
    pub(super) budget: Duration,
    pub(super) cases: Vec<Case>,
    /// Whether there is a core per rank.
    pub(super) has_cores: bool,
    /// Emulated links.
    pub(super) emulate: Emulate,
    /// Whether the selected algorithm alternates with all others.
    pub(super) selects: bool,
    pub(super) explains: bool,
}

impl Plan {
    pub(super) fn from_arguments(arguments: &Arguments, world: &World) -> Result<Self, Failure> {
        let collectives = match arguments.op.as_str() {
            "all" => Collective::ALL.to_vec(),
            ops => parse_list::<Collective>("--op", ops)?,
        };
        let transport = transport(&arguments.transport)?;
        let num_ranks = num_ranks(&arguments.ranks)?;
        let dtype = dtype(&arguments.dtype)?;
        let buffers = buffers(arguments.buffers.as_deref(), transport)?;
        let algorithms = match arguments.algorithm.as_str() {
            "auto" => vec![None],
            names => parse_list("--algorithm", names)?.into_iter().map(Some).collect(),
        };
        let sizes = sizes(&arguments.bytes, dtype)?;
        let mut cases = Vec::new();
        for &collective in &collectives {
            for &algorithm in &algorithms {
                if let Some(algorithm) = algorithm {
                    check_algorithm(collective, algorithm, num_ranks, transport)?;
                }
                // A barrier has no payload, so it has one case.
                let sizes = if collective == Collective::Barrier { &[0][..] } else { &sizes };
                let case = |&bytes: &usize| Case { collective, dtype, bytes, algorithm, buffers };
                cases.extend(sizes.iter().map(case));
            }
        }
        if let Some(path) = &arguments.svg {
            check_writable(path, world)?;
        }
        let budget = budget(&arguments.seconds)?;
        let has_cores = num_ranks <= world.threads().available();
        let emulate = emulate(&arguments.sets, transport, num_ranks)?;
        let (selects, explains) = (arguments.select, arguments.explain);
        if selects && arguments.algorithm != "auto" {
            return Err(Failure::user("--select times all algorithms; leave --algorithm out"));
        }
        let plan =
            Self { num_ranks, transport, budget, cases, has_cores, emulate, selects, explains };
        plan.check_memory(world)?;
        Ok(plan)
    }

    /// The largest size.
    pub(super) fn max_bytes(&self) -> usize {
        self.cases.iter().map(|case| case.bytes).max().unwrap_or(0)
    }

    /// Refuses sizes beyond memory: per rank an input, an output, private copies of both and a
    /// buffer for the memory sweep.
    fn check_memory(&self, world: &World) -> Result<(), Failure> {
        let needed = (self.max_bytes() as u64).saturating_mul(5 * self.num_ranks as u64);
        let there = world.host().memory_bytes();
        if there > 0 && needed > there {
            let (largest, needed, there) =
                (Bytes(self.max_bytes() as u64), Bytes(needed), Bytes(there));
            return Err(Failure::user(format!(
                "--bytes {largest} on {} ranks needs up to {needed} of memory; the host has \
                 {there}",
                self.num_ranks
            )));
        }
        Ok(())
    }
}

fn parse_list<T: FromStr<Err: Display>>(option: &str, text: &str) -> Result<Vec<T>, Failure> {
    let parse = |item: &str| {
        item.trim().parse().map_err(|error| Failure::user(format!("{option}: {error}")))
    };
    text.split(',').map(parse).collect()
}

fn transport(text: &str) -> Result<Transport, Failure> {
    let all = [Transport::Threads, Transport::Shm, Transport::Tcp];
    all.into_iter().find(|transport| transport.name() == text).ok_or_else(|| {
        Failure::user(format!("--transport: `{text}` is not a transport; try threads, shm or tcp"))
    })
}

fn num_ranks(text: &str) -> Result<usize, Failure> {
    let number = text.parse().ok().filter(|number| (1..=MAX_RANKS).contains(number));
    number.ok_or_else(|| {
        Failure::user(format!("--ranks {text} is not a number from 1 to {MAX_RANKS}; try 2"))
    })
}

fn dtype(text: &str) -> Result<Dtype, Failure> {
    Dtype::ALL.into_iter().find(|dtype| dtype.name() == text).ok_or_else(|| {
        let names = Dtype::ALL.map(Dtype::name).join(", ");
        Failure::user(format!("--dtype: `{text}` is not an element type; try {names}"))
    })
}

fn buffers(text: Option<&str>, transport: Transport) -> Result<Buffers, Failure> {
    let is_shared = transport != Transport::Tcp;
    match text {
        None | Some("arena") if is_shared => Ok(Buffers::Arena),
        None | Some("private") => Ok(Buffers::Private),
        Some("arena") => {
            Err(Failure::user("--buffers arena needs shared memory, which tcp lacks; try private"))
        }
        Some(other) => {
            Err(Failure::user(format!("--buffers: `{other}` is neither; try arena or private")))
        }
    }
}

fn sizes(text: &str, dtype: Dtype) -> Result<Vec<usize>, Failure> {
    let sizes = parse_list::<Bytes>("--bytes", text)?.into_iter().map(|size| {
        let bytes = usize::try_from(size.0).unwrap_or(usize::MAX);
        if bytes.is_multiple_of(dtype.bytes()) {
            return Ok(bytes);
        }
        let works = bytes.saturating_sub(1) / dtype.bytes() * dtype.bytes() + dtype.bytes();
        Err(Failure::user(format!(
            "--bytes {bytes} is not a whole number of {dtype} of {} bytes; try {works}",
            dtype.bytes()
        )))
    });
    sizes.collect()
}

/// Emulated links by the rules of a recipe.
fn emulate(sets: &[String], transport: Transport, num_ranks: usize) -> Result<Emulate, Failure> {
    if sets.is_empty() {
        return Ok(Emulate::none());
    }
    if let Some(other) = sets.iter().find(|set| !set.starts_with("emulate.")) {
        let rule = "is not an emulate key; try --set emulate.latency_ms=1";
        return Err(Failure::user(format!("--set {other} {rule}")));
    }
    if transport != Transport::Tcp {
        let name = transport.name();
        let rule = format!("--set emulate.* emulates links, which {name} lacks");
        return Err(Failure::user(format!("{rule}; try --transport tcp")));
    }
    // Only the emulate section of this recipe is used.
    let num_leaves = num_ranks.next_power_of_two().max(8);
    let mut all = vec![
        "run.transport=tcp".to_owned(),
        format!("run.workers={num_ranks}"),
        format!("numerics.invariant_up_to={num_leaves}"),
        format!("train.batch={num_leaves}"),
        "train.microbatch=1".to_owned(),
    ];
    all.extend_from_slice(sets);
    let recipe = lockstep_config::resolve(&Sources { sets: all, ..Sources::default() })?;
    Ok(recipe.emulate)
}

fn budget(text: &str) -> Result<Duration, Failure> {
    let seconds = text.parse::<f64>().ok().filter(|&seconds| seconds > 0.0 && seconds <= 3600.0);
    let seconds = seconds.ok_or_else(|| {
        Failure::user(format!("--seconds {text} is not between 0 and 3600; try 0.3"))
    })?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Refuses an algorithm that cannot run an operation over a transport.
fn check_algorithm(
    collective: Collective,
    algorithm: Algorithm,
    num_ranks: usize,
    transport: Transport,
) -> Result<(), Failure> {
    let op = collective.op();
    let is_shared = transport != Transport::Tcp;
    let topology = if is_shared {
        Topology::flat(num_ranks, Medium::Memory)
    } else {
        Topology::by_host(&(0..num_ranks).collect::<Vec<_>>())
    };
    let group = GroupSpec { topology: Some(topology), ..GroupSpec::new(num_ranks) };
    let built = build(op, algorithm, &group);
    let schedule = built.map_err(|error| Failure::user(format!("--algorithm: {error}")))?;
    if !schedule.needs_memory() || is_shared {
        return Ok(());
    }
    let by_messages = |other: &&Algorithm| {
        build(op, **other, &group).is_ok_and(|schedule| !schedule.needs_memory())
    };
    let others = algorithms(op).iter().filter(by_messages).map(Algorithm::to_string);
    Err(Failure::user(format!(
        "--algorithm: {algorithm} needs shared memory, which tcp lacks; try {}",
        others.collect::<Vec<_>>().join(", ")
    )))
}

/// Refuses a plot file that cannot be written, before measuring.
fn check_writable(path: &Path, world: &World) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let is_there = folder.is_none_or(|folder| {
        matches!(world.files().metadata(folder), Some(lockstep_platform::FileKind::Directory))
    });
    let is_folder =
        matches!(world.files().metadata(path), Some(lockstep_platform::FileKind::Directory));
    if is_there && !is_folder && path.file_name().is_some() {
        return Ok(());
    }
    Err(Failure::user(format!("--svg {} is not a file in an existing folder", path.display())))
}
