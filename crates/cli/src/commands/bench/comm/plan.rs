//! What was asked for, proven before anything starts.

use super::Arguments;
use crate::failure::Failure;
use lockstep_comm::Dtype;
use lockstep_bench::{Buffers, Case, Kind};
use lockstep_config::units::Bytes;
use lockstep_config::{Emulate, Sources};
use lockstep_platform::World;
use lockstep_schedule::collective::{GroupSpec, algorithms, build};
use lockstep_schedule::{Algorithm, Medium, Topology};
use std::fmt::Display;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// More ranks than this share too few cores to tell anything.
const MAX_RANKS: usize = 64;

/// How ranks reach each other.
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

/// What is measured, and by whom.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Plan {
    pub(super) num_ranks: usize,
    pub(super) transport: Transport,
    pub(super) budget: Duration,
    pub(super) cases: Vec<Case>,
    /// Whether every rank can have a core of its own.
    pub(super) has_cores: bool,
    /// What links are made to be like.
    pub(super) emulate: Emulate,
    /// Whether the library's choice takes turns with all others.
    pub(super) selects: bool,
    pub(super) explains: bool,
}

impl Plan {
    pub(super) fn prove(arguments: &Arguments, world: &World) -> Result<Self, Failure> {
        let kinds = match arguments.op.as_str() {
            "all" => Kind::ALL.to_vec(),
            ops => listed::<Kind>("--op", ops)?,
        };
        let transport = transport(&arguments.transport)?;
        let num_ranks = num_ranks(&arguments.ranks)?;
        let dtype = dtype(&arguments.dtype)?;
        let buffers = buffers(arguments.buffers.as_deref(), transport)?;
        let algorithms = match arguments.algorithm.as_str() {
            "auto" => vec![None],
            names => listed("--algorithm", names)?.into_iter().map(Some).collect(),
        };
        let sizes = sizes(&arguments.bytes, dtype)?;
        let mut cases = Vec::new();
        for &kind in &kinds {
            for &algorithm in &algorithms {
                if let Some(algorithm) = algorithm {
                    suits(kind, algorithm, num_ranks, transport)?;
                }
                // A barrier moves nothing, so one line says all.
                let sizes = if kind == Kind::Barrier { &[0][..] } else { &sizes };
                let case = |&bytes: &usize| Case { kind, dtype, bytes, algorithm, buffers };
                cases.extend(sizes.iter().map(case));
            }
        }
        if let Some(path) = &arguments.svg {
            writable(path, world)?;
        }
        let budget = budget(&arguments.seconds)?;
        let has_cores = num_ranks <= world.threads().available();
        let emulate = emulate(&arguments.sets, transport, num_ranks)?;
        let (selects, explains) = (arguments.select, arguments.explain);
        if selects && arguments.algorithm != "auto" {
            return Err(Failure::user("--select tries all algorithms; leave --algorithm out"));
        }
        let plan =
            Self { num_ranks, transport, budget, cases, has_cores, emulate, selects, explains };
        plan.fits(world)?;
        Ok(plan)
    }

    /// The largest size.
    pub(super) fn max_bytes(&self) -> usize {
        self.cases.iter().map(|case| case.bytes).max().unwrap_or(0)
    }

    /// Every rank has an input and an output at most, copies of both where they are private, and
    /// a buffer to sweep over.
    fn fits(&self, world: &World) -> Result<(), Failure> {
        let needed = (self.max_bytes() as u64).saturating_mul(5 * self.num_ranks as u64);
        let there = world.host().memory_bytes();
        if there > 0 && needed > there {
            let (largest, needed, there) =
                (Bytes(self.max_bytes() as u64), Bytes(needed), Bytes(there));
            return Err(Failure::user(format!(
                "--bytes {largest} on {} ranks needs up to {needed}, and there are {there}",
                self.num_ranks
            )));
        }
        Ok(())
    }
}

fn listed<T: FromStr<Err: Display>>(option: &str, text: &str) -> Result<Vec<T>, Failure> {
    let parse = |word: &str| {
        word.trim().parse().map_err(|error| Failure::user(format!("{option}: {error}")))
    };
    text.split(',').map(parse).collect()
}

fn transport(text: &str) -> Result<Transport, Failure> {
    let all = [Transport::Threads, Transport::Shm, Transport::Tcp];
    all.into_iter().find(|transport| transport.name() == text).ok_or_else(|| {
        Failure::user(format!("--transport: `{text}` is no transport; try threads, shm or tcp"))
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
        Failure::user(format!("--dtype: `{text}` is no type of elements; try {names}"))
    })
}

fn buffers(text: Option<&str>, transport: Transport) -> Result<Buffers, Failure> {
    let is_shared = transport != Transport::Tcp;
    match text {
        None | Some("arena") if is_shared => Ok(Buffers::Arena),
        None | Some("private") => Ok(Buffers::Private),
        Some("arena") => Err(Failure::user(
            "--buffers arena needs memory that the ranks share, and tcp has none; try private",
        )),
        Some(other) => Err(Failure::user(format!(
            "--buffers: `{other}` is no place for buffers; try arena or private"
        ))),
    }
}

fn sizes(text: &str, dtype: Dtype) -> Result<Vec<usize>, Failure> {
    let sizes = listed::<Bytes>("--bytes", text)?.into_iter().map(|size| {
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

/// What links are made to be like, by the rules of a recipe.
fn emulate(sets: &[String], transport: Transport, num_ranks: usize) -> Result<Emulate, Failure> {
    if sets.is_empty() {
        return Ok(Emulate::none());
    }
    if let Some(other) = sets.iter().find(|set| !set.starts_with("emulate.")) {
        let rule = "is no key of emulate; try --set emulate.latency_ms=1";
        return Err(Failure::user(format!("--set {other} {rule}")));
    }
    if transport != Transport::Tcp {
        let name = transport.name();
        let rule = format!("--set emulate.* makes links worse, and {name} has none");
        return Err(Failure::user(format!("{rule}; try --transport tcp")));
    }
    // A recipe for as many workers; nothing else of it is used.
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
        Failure::user(format!("--seconds {text} is not a time up to an hour; try 0.3"))
    })?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Whether an algorithm can carry out an operation over a transport.
fn suits(
    kind: Kind,
    algorithm: Algorithm,
    num_ranks: usize,
    transport: Transport,
) -> Result<(), Failure> {
    let op = kind.op();
    let is_shared = transport != Transport::Tcp;
    let topology = if is_shared {
        Topology::flat(num_ranks, Medium::Memory)
    } else {
        Topology::by_host(&(0..num_ranks).collect::<Vec<_>>())
    };
    let team = GroupSpec { topology: Some(topology), ..GroupSpec::new(num_ranks) };
    let built = build(op, algorithm, &team);
    let schedule = built.map_err(|error| Failure::user(format!("--algorithm: {error}")))?;
    if !schedule.needs_memory() || is_shared {
        return Ok(());
    }
    let by_messages = |other: &&Algorithm| {
        build(op, **other, &team).is_ok_and(|schedule| !schedule.needs_memory())
    };
    let others = algorithms(op).iter().filter(by_messages).map(Algorithm::to_string);
    Err(Failure::user(format!(
        "--algorithm: {algorithm} needs memory that the ranks share, and tcp has none; try {}",
        others.collect::<Vec<_>>().join(", ")
    )))
}

/// Whether a picture can be put there; it is better to know before measuring.
fn writable(path: &Path, world: &World) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let is_there = folder.is_none_or(|folder| {
        matches!(world.files().metadata(folder), Some(lockstep_platform::FileKind::Directory))
    });
    let is_folder =
        matches!(world.files().metadata(path), Some(lockstep_platform::FileKind::Directory));
    if is_there && !is_folder && path.file_name().is_some() {
        return Ok(());
    }
    Err(Failure::user(format!("--svg {} is no file in a folder that exists", path.display())))
}
