//! `lockstep check`: versions, clocks, links, disks and limits of all hosts before a run.

use crate::automatic::Purpose;
use crate::common_flags::CommonFlags;
use crate::failure::Failure;
use crate::output;
use crate::rank_flags::RankFlags;
use crate::recipe_args::RecipeArguments;
use crate::workers::{self, LaunchOptions, RunDir};
use lockstep_comm::Comm;
use lockstep_config::Recipe;
use lockstep_config::units::{Bytes, BytesPerSecond, Seconds};
use lockstep_platform::World;
use lockstep_trainer::host_check::{HostReport, LinkFacts, Severity, check_hosts};
use lockstep_trainer::run_folder::RUNS;
use std::fmt::Write as _;
use std::path::Path;

/// Most ranks whose links are printed one by one.
const MAX_MATRIX: usize = 16;

/// Check all hosts before a run: versions, clocks, links, disks, devices and limits
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  lockstep check --workers 4                           the workers of this host
  mpirun -n 8 lockstep check                           all hosts of an MPI launcher; srun likewise
  torchrun --nnodes 2 --nproc-per-node 4 ... --no-python lockstep check my.toml
  lockstep check my.toml --json                        all facts as JSON

Start it as the run itself will be started. Every rank measures its own host and its links, and
rank 0 prints what stands out, with what mends it. Exit code 2 if a run would fail.")]
pub(crate) struct Arguments {
    #[command(flatten)]
    recipe: RecipeArguments,
    #[command(flatten)]
    flags: CommonFlags,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    place: RankFlags,
}

pub(crate) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let world = &arguments.place.apply(world)?;
    let recipe = arguments.flags.add_to(&arguments.recipe)?;
    let (recipe, _) = recipe.resolve_for(Purpose::Run(None), world, None)?;
    let folder = match Path::new(&recipe.run.dir).parent() {
        None => Path::new(RUNS),
        Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) => folder,
    };
    let folder = folder.to_owned();
    let own_world = World::clone(world);
    let work = move |recipe: &Recipe, comm: &Comm| check_hosts(recipe, &own_world, comm, &folder);
    let check = || Ok(LaunchOptions::default());
    let Some(report) = workers::run(&recipe, world, true, &RunDir::default(), check, work)? else {
        return Ok(());
    };
    if arguments.json {
        output::json(&report)?;
    } else {
        output::text(&render(&report))?;
    }
    let errors = report.findings.iter().filter(|finding| finding.severity == Severity::Error);
    match errors.count() {
        0 => Ok(()),
        1 => Err(Failure::user("a run would fail: 1 error above")),
        many => Err(Failure::user(format!("a run would fail: {many} errors above"))),
    }
}

/// The table of ranks, the links, and what to mend.
fn render(report: &HostReport) -> String {
    let titles = ["rank", "host", "version", "device", "cores", "memory", "files", "clock", "disk"];
    let mut rows = vec![titles.map(str::to_owned)];
    rows.extend(report.hosts.iter().map(|facts| {
        [
            facts.rank.to_string(),
            facts.host.clone(),
            facts.version.clone(),
            facts.device.clone(),
            facts.cores.to_string(),
            Bytes(facts.memory_bytes).to_string(),
            facts.open_files.map_or_else(|| "?".to_owned(), |limit| limit.to_string()),
            signed(facts.clock_ahead_seconds),
            facts
                .disk_bytes_per_second
                .map_or_else(|| "fails".into(), |rate| BytesPerSecond(rate).to_string()),
        ]
    }));
    let mut text = table(&rows);
    let size = report.hosts.len();
    if report.links.is_empty() {
        let _ =
            writeln!(text, "\nthe ranks share memory ({}); there are no links", report.transport);
    } else if size <= MAX_MATRIX {
        let title = format!(
            "\nlinks over {}, from row to column: latency and bandwidth\n",
            report.transport
        );
        text.push_str(&title);
        text.push_str(&matrix(&report.links, size));
    }
    if report.findings.is_empty() {
        text.push_str("\nnothing to mend\n");
    }
    for finding in &report.findings {
        let severity = if finding.severity == Severity::Error { "error" } else { "warning" };
        let _ =
            write!(text, "\n{severity}: {}: {}\n  {}\n", finding.at, finding.text, finding.remedy);
    }
    text
}

/// An offset with its sign.
fn signed(seconds: f64) -> String {
    let sign = if seconds < 0.0 { "-" } else { "+" };
    format!("{sign}{}", Seconds(seconds.abs()))
}

/// Links between all ranks.
fn matrix(links: &[LinkFacts], size: usize) -> String {
    let cell = |from: usize, to: usize| {
        let link = links.iter().find(|link| (link.from, link.to) == (from, to));
        link.map_or_else(
            || "-".to_owned(),
            |link| {
                format!(
                    "{} {}",
                    Seconds(link.latency_seconds),
                    BytesPerSecond(link.bytes_per_second)
                )
            },
        )
    };
    let title = std::iter::once("rank".to_owned()).chain((0..size).map(|rank| rank.to_string()));
    let mut rows = vec![title.collect::<Vec<_>>()];
    for from in 0..size {
        let cells = (0..size).map(|to| cell(from, to));
        rows.push(std::iter::once(from.to_string()).chain(cells).collect());
    }
    table(&rows)
}

/// Rows with columns of equal width.
fn table<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width = |column: usize| rows.iter().map(|row| row.as_ref()[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.as_ref().iter().zip(&widths) {
            let _ = write!(line, "{cell:width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}
