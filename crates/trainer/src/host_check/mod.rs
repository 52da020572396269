//! Hosts of a run before it starts: versions, clocks, devices, memory, limits, disks and links, and
//! what to mend.
//!
//! Every rank measures its own host, then all exchange their facts. Rules compare the hosts with
//! each other, since a cluster is as slow as its slowest host, and with the needs of a run.
//!
//! - `findings`: the rules

mod findings;

use crate::trace::clock_offset::ClockOffset;
use crate::{TrainError, device};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_platform::World;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

pub use findings::{Finding, Severity, find};

/// Bytes that are written to measure a disk, in pieces.
const DISK_BYTES: usize = 32 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// Facts about the host of a rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HostFacts {
    /// The rank.
    pub rank: usize,
    /// Name of its host.
    pub host: String,
    /// Version of the program.
    pub version: String,
    /// Class of kernels with equal bits.
    pub kernel_class: String,
    /// Device that the recipe trains on.
    pub device: String,
    /// Cores that this process may use.
    pub cores: usize,
    /// Threads of the rank.
    pub threads: usize,
    /// Memory available to this process; 0 if unknown.
    pub memory_bytes: u64,
    /// Files and sockets that this process may open; none if unknown.
    pub open_files: Option<u64>,
    /// Time by which the host's clock is ahead of that of rank 0.
    pub clock_ahead_seconds: f64,
    /// Bound of its error.
    pub clock_error_seconds: f64,
    /// Rate of writing to the folder of runs, until the bytes are safe; none where it failed.
    pub disk_bytes_per_second: Option<f64>,
    /// Error of the disk.
    pub disk_error: Option<String>,
    /// Whether the rank sees what rank 0 writes into the folder of runs.
    pub shares_folder: bool,
}

/// Link from one rank to another.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LinkFacts {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// Time of an empty message.
    pub latency_seconds: f64,
    /// Bandwidth of a long message.
    pub bytes_per_second: f64,
}

/// Facts about all hosts, and what to mend.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct HostReport {
    /// How data moves between the ranks.
    pub transport: String,
    /// Hosts, by rank.
    pub hosts: Vec<HostFacts>,
    /// Links between all ranks; empty where all share memory.
    pub links: Vec<LinkFacts>,
    /// Deviations, the severest first.
    pub findings: Vec<Finding>,
}

/// Measures all hosts of a group. Collective; rank 0 has the report.
pub fn check_hosts(
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    folder: &Path,
) -> Result<Option<HostReport>, TrainError> {
    let mut own = own_facts(recipe, world, comm, folder)?;
    let wall = || world.clock().wall().as_nanos() as u64;
    let clock = ClockOffset::measure_by(comm, world, wall)?;
    [own.clock_ahead_seconds, own.clock_error_seconds] = clock.behind_seconds();
    own.shares_folder = shares_folder(world, comm, folder)?;
    let text = serde_json::to_vec(&own).expect("facts are JSON");
    let mut all = Vec::new();
    let lengths = comm.all_gather_v(&text, &mut all)?;
    let measured = comm.probe()?;
    if comm.group_rank() != 0 {
        return Ok(None);
    }
    let mut rest = &all[..];
    let hosts = lengths.into_iter().map(|len| {
        let (own, others) = rest.split_at(len);
        rest = others;
        serde_json::from_slice(own).expect("every rank runs this program")
    });
    let hosts: Vec<HostFacts> = hosts.collect();
    let size = hosts.len();
    let pairs = (0..size * size).map(|pair| (pair / size, pair % size));
    let links = measured.iter().flat_map(|measured| {
        pairs.clone().filter(|(from, to)| from != to).filter_map(|(from, to)| {
            let link = measured.links.between(from, to)?;
            let (latency_seconds, bytes_per_second) = (link.latency.0, link.bandwidth.0);
            Some(LinkFacts { from, to, latency_seconds, bytes_per_second })
        })
    });
    let links: Vec<LinkFacts> = links.collect();
    let findings = find(&hosts, &links);
    Ok(Some(HostReport { transport: comm.transport().to_owned(), hosts, links, findings }))
}

/// Facts that need no other rank.
fn own_facts(
    recipe: &Recipe,
    world: &World,
    comm: &Comm,
    folder: &Path,
) -> Result<HostFacts, TrainError> {
    let compute = device::open(recipe, world, comm)?;
    let disk = disk_rate(world, &folder.join(format!("check-{}", comm.rank().0)));
    Ok(HostFacts {
        rank: comm.rank().0,
        host: world.host().name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        kernel_class: device::kernel_class(recipe, &compute),
        device: device::name(&compute),
        cores: world.threads().available(),
        threads: recipe.run.num_threads(world.threads().available(), recipe.run.workers),
        memory_bytes: world.host().memory_bytes(),
        open_files: open_files(world),
        clock_ahead_seconds: 0.0,
        clock_error_seconds: 0.0,
        disk_bytes_per_second: disk.as_ref().ok().copied(),
        disk_error: disk.err(),
        shares_folder: false,
    })
}

/// Rate at which a new file is written and made safe; the file is removed.
fn disk_rate(world: &World, path: &Path) -> Result<f64, String> {
    let write = || -> Result<Duration, String> {
        world
            .files()
            .create_dir_all(path.parent().expect("a folder"))
            .map_err(|error| error.to_string())?;
        let mut file = world.files().create(path).map_err(|error| error.to_string())?;
        // No file system stores it as zeros.
        let piece: Vec<u8> =
            (0..PIECE_BYTES).map(|at| (at.wrapping_mul(0x9e37) >> 7) as u8).collect();
        let start = world.clock().now();
        for _ in 0..DISK_BYTES / PIECE_BYTES {
            file.write_all(&piece).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        file.sync().map_err(|error| error.to_string())?;
        Ok(world.clock().since(start))
    };
    let took = write();
    let _ = world.files().remove_file(path);
    took.map(|took| DISK_BYTES as f64 / took.as_secs_f64().max(1e-9))
}

/// Whether this rank sees a file that rank 0 has just written. Collective.
fn shares_folder(world: &World, comm: &Comm, folder: &Path) -> Result<bool, TrainError> {
    let mut number = [world.entropy().u64()];
    comm.broadcast(&mut number, 0)?;
    let path = folder.join(format!("check-{:016x}", number[0]));
    if comm.group_rank() == 0 {
        // A folder that cannot be written has its own finding.
        let _ = world.files().write_atomic(&path, b"lockstep check");
    }
    comm.barrier()?;
    let is_shared = world.files().metadata(&path).is_some();
    comm.barrier()?;
    if comm.group_rank() == 0 {
        let _ = world.files().remove_file(&path);
    }
    Ok(is_shared)
}

/// Soft limit of open files, as Linux shows it.
fn open_files(world: &World) -> Option<u64> {
    let limits = world.files().read_to_string(Path::new("/proc/self/limits")).ok()?;
    let line = limits.lines().find(|line| line.starts_with("Max open files"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}
