//! `lockstep plan validate`: predictions beside published runs.

use crate::failure::Failure;
use crate::output;
use lockstep_estimate::Calibration;
use lockstep_estimate::time::pipeline::Pipelines;
use lockstep_estimate::validate::fit::{self, File};
use lockstep_estimate::validate::score::{self, Score};
use lockstep_platform::World;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::PathBuf;

/// Hold predictions against published runs
#[derive(clap::Args)]
#[command(after_help = "\
Reads tables of runs with a common header (id, model, layers, hidden, gpu, gpus, tp, pp, dp, gbs,
mbs, step_time_s, mem_gb, status, …), predicts every row with one calibration for its type of
device, and prints errors as shares of what was measured. A row that cannot be predicted is skipped
with a reason.

--fit moves the constants of every type of device towards its rows, in all files together, and with
--out writes them as files; --leave-out fits without each file in turn and says what that changes.

Examples:
  lockstep plan validate runs.csv
  lockstep plan validate *.csv --json
  lockstep plan validate runs.csv --rows              every row beside its prediction
  lockstep plan validate *.csv --fit 20 --out calibrations
  lockstep plan validate *.csv --leave-out 8")]
pub(crate) struct Arguments {
    /// Tables of published runs
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print every row
    #[arg(long)]
    rows: bool,
    /// Fit calibrations to the files first, in so many rounds
    #[arg(long, value_name = "ROUNDS")]
    fit: Option<usize>,
    /// Write fitted calibrations into this folder
    #[arg(long, value_name = "FOLDER", requires = "fit")]
    out: Option<PathBuf>,
    /// Fit without each file in turn, in so many rounds, and print the change of its own error
    #[arg(long, value_name = "ROUNDS")]
    leave_out: Option<usize>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

type Calibrations = BTreeMap<String, Calibration>;

pub(super) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    let mut texts = Vec::new();
    let mut unreadable = Vec::new();
    for path in &arguments.files {
        let name = path.file_stem().map_or_else(|| "file".into(), |stem| stem.to_string_lossy());
        match world.files().read_to_string(path) {
            Ok(text) => texts.push((name.into_owned(), text)),
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    if !unreadable.is_empty() {
        return Err(Failure::user(unreadable.join("\nerror: ")));
    }
    let mut pipelines = Pipelines::default();
    let mut calibrations: Calibrations =
        Calibration::all().into_iter().map(|known| (known.name.clone(), known)).collect();
    if let Some(rounds) = arguments.fit {
        calibrations = fitted(&texts, &calibrations, rounds, &mut pipelines);
        write(arguments, &calibrations, world)?;
    }
    let scored: Vec<_> = texts
        .iter()
        .map(|(name, text)| score::score(name, text, &calibrations, &mut pipelines))
        .collect();
    let mut scores: Vec<Score> = scored.iter().map(|(score, _)| score.clone()).collect();
    if let Some(rounds) = arguments.leave_out {
        for (index, score) in scores.iter_mut().enumerate() {
            score.left_out_mape = left_out(&texts, index, &calibrations, rounds, &mut pipelines);
        }
    }
    if arguments.json {
        return output::json(&scores);
    }
    let mut text = render(&scores);
    if arguments.rows {
        for (_, outcomes) in &scored {
            text += &rows(outcomes);
        }
    }
    output::text(&text)
}

/// Every type's constants, moved towards its rows.
fn fitted(
    texts: &[(String, String)],
    start: &Calibrations,
    rounds: usize,
    pipelines: &mut Pipelines,
) -> Calibrations {
    let mut all = start.clone();
    for (name, calibration) in &mut all {
        let files: Vec<File> = texts
            .iter()
            .filter_map(|(file, text)| {
                let (mut runs, _, _) = score::rows(text);
                runs.retain(|run| {
                    run.seconds.is_some() && run.cluster.device.calibration == name.as_str()
                });
                let file = File { name: file.clone(), runs, weight: 1.0 };
                (!file.runs.is_empty()).then_some(file)
            })
            .collect();
        if !files.is_empty() {
            *calibration = fit::fit(&files, calibration, rounds, pipelines);
            let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
            calibration.source = format!("fitted to {}", names.join(", "));
        }
    }
    all
}

/// A file's error by constants that were fitted without it; nothing where no other file has runs
/// on its devices, so that there is nothing to fit.
fn left_out(
    texts: &[(String, String)],
    index: usize,
    start: &Calibrations,
    rounds: usize,
    pipelines: &mut Pipelines,
) -> Option<f64> {
    let others: Vec<_> =
        texts.iter().enumerate().filter(|(i, _)| *i != index).map(|(_, t)| t.clone()).collect();
    let (name, text) = &texts[index];
    let types = |text: &str| -> BTreeSet<&'static str> {
        score::rows(text).0.iter().map(|run| run.cluster.device.calibration).collect()
    };
    let known: BTreeSet<_> = others.iter().flat_map(|(_, text)| types(text)).collect();
    if !types(text).is_subset(&known) {
        return None;
    }
    let calibrations = fitted(&others, start, rounds, pipelines);
    score::score(name, text, &calibrations, pipelines).0.step_time_mape
}

fn write(arguments: &Arguments, all: &Calibrations, world: &World) -> Result<(), Failure> {
    let Some(folder) = &arguments.out else { return Ok(()) };
    world.files().create_dir_all(folder)?;
    for (name, calibration) in all {
        let path = folder.join(format!("{name}.toml"));
        world.files().write_atomic(&path, calibration.to_toml().as_bytes())?;
    }
    Ok(())
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1}", 100.0 * share))
}

fn render(scores: &[Score]) -> String {
    let mut text = format!(
        "{:<22} {:>5} {:>5}  {:>6} {:>6} {:>6} {:>6}  {:>6} {:>8} {:>7}\n",
        "file", "rows", "said", "mean", "median", "worst", "bias", "memory", "verdicts", "regret"
    );
    for score in scores {
        let _ = writeln!(
            text,
            "{:<22} {:>5} {:>5}  {:>6} {:>6} {:>6} {:>6}  {:>6} {:>8} {:>7}",
            score.file,
            score.rows,
            score.rows_predicted,
            percent(score.step_time_mape),
            percent(score.step_time_median_error),
            percent(score.step_time_worst),
            percent(score.step_time_bias),
            percent(score.memory_mape),
            percent(score.oom_accuracy),
            percent(score.regret_median),
        );
        for (table, error) in &score.tables {
            let _ = writeln!(text, "    {table}: mean {} %", percent(Some(*error)));
        }
        if let Some(error) = score.left_out_mape {
            let _ = writeln!(text, "    fitted without it: mean {} %", percent(Some(error)));
        }
        for (reason, count) in &score.skipped {
            let _ = writeln!(text, "    {count} skipped: {reason}");
        }
    }
    text + "errors of step time, of memory, share of right verdicts, loss by the chosen layout: %\n"
}

fn rows(outcomes: &[score::Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let _ = write!(text, "{:<26} {:<44}", outcome.id, outcome.layout);
        if let Some((was, said)) = outcome.seconds {
            let _ = write!(
                text,
                " {was:>9.4} s, said {said:>9.4} ({:+.1} %)",
                100.0 * (said / was - 1.0)
            );
        }
        if let Some((was, said)) = outcome.memory {
            let error = 100.0 * (said / was - 1.0);
            let _ =
                write!(text, " {:>6.1} GB, said {:>6.1} ({error:+.1} %)", was / 1e9, said / 1e9);
        }
        if let Some((false, fits)) = outcome.fits {
            let _ =
                write!(text, " did not run, said to {}", if fits { "fit" } else { "be too large" });
        }
        text.push('\n');
    }
    text
}
