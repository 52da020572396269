//! `lockstep data check`: verifies the checksums of a shard folder.

use super::progress::{Gauge, Meter};
use crate::failure::Failure;
use crate::output;
use crate::quantity::si_bytes;
use lockstep_config::units::BytesPerSecond;
use lockstep_data::shards::ShardSet;
use lockstep_platform::World;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;

/// Check every byte of a shard folder against its checksums
#[derive(clap::Args)]
#[command(after_help = "\
Exits with 2 and names the file where a checksum differs. Training checks sets below 1 GiB itself.

Examples:
  lockstep data check shards
  lockstep data check shards --json")]
pub(crate) struct Arguments {
    /// Shard folder
    folder: PathBuf,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    folder: PathBuf,
    fingerprint: String,
    verified: bool,
    file_bytes: u64,
    seconds: f64,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let start = world.clock().now();
    let set = ShardSet::open_unchecked(&arguments.folder, world.files())?;
    let gauge = Arc::new(Gauge::default());
    let meter = Meter::start("checking", &gauge, arguments.json, world)?;
    let total = set.file_bytes();
    let verified = set.verify_with(&mut |done| gauge.set(done, total, done));
    drop(meter);
    verified?;
    set.tokenizer(world.files())?;
    let report = Report {
        folder: arguments.folder.clone(),
        fingerprint: set.fingerprint(),
        verified: true,
        file_bytes: total,
        seconds: world.clock().since(start).as_secs_f64(),
    };
    if arguments.json {
        return output::json(&report);
    }
    let rate = BytesPerSecond(total as f64 / report.seconds);
    let (folder, total) = (report.folder.display(), si_bytes(total));
    output::text(&format!("{folder}: {total} verified ({rate})\n"))
}
