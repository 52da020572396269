//! `lockstep plan validate`: predictions against published runs.

use crate::failure::Failure;
use crate::output;
use crate::quantity::digits;
use crate::workers::print_status;
use lockstep_planner::Calibration;
use lockstep_planner::pipeline::Pipelines;
use lockstep_planner::validate::fit::{self, Calibrations, File};
use lockstep_planner::validate::row::PublishedRun;
use lockstep_planner::validate::score::{self, Score};
use lockstep_platform::World;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Compare predictions with published runs
#[derive(clap::Args)]
#[command(after_help = "\
Reads tables of runs with a common header (id, model, layers, hidden, gpu, gpus, tp, pp, dp, gbs,
mbs, step_time_s, mem_gb, status, …), predicts every row with one calibration per device type, and
prints errors relative to the measurement. A row that cannot be predicted is skipped with a reason.

--fit fits the calibration of every device type to the rows of all files, starting from its prior,
and --out writes it. --leave-out cross-validates: it fits to all files, then without each in turn,
and prints the change of that file's error.

Examples:
  lockstep plan validate runs.csv
  lockstep plan validate *.csv --json
  lockstep plan validate runs.csv --rows              every row with its prediction
  lockstep plan validate *.csv --fit 20 --out calibrations
  lockstep plan validate *.csv --leave-out 8")]
pub(crate) struct Arguments {
    /// Tables of published runs
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Print every row with its prediction
    #[arg(long)]
    rows: bool,
    /// Fit calibrations to the files first, in this many rounds
    #[arg(long, value_name = "ROUNDS")]
    fit: Option<usize>,
    /// Write fitted calibrations into this folder
    #[arg(long, value_name = "FOLDER", requires = "fit")]
    out: Option<PathBuf>,
    /// Cross-validate: fit without each file in turn, in this many rounds
    #[arg(long, value_name = "ROUNDS")]
    leave_out: Option<usize>,
    /// One JSON value on standard output
    #[arg(long)]
    json: bool,
}

/// Reads the tables, or reports every one that cannot be read.
fn read(files: &[PathBuf], world: &World) -> Result<Vec<(String, String)>, Failure> {
    let mut texts = Vec::new();
    let mut unreadable = Vec::new();
    for path in files {
        let name = path.file_stem().map_or_else(|| "file".into(), |stem| stem.to_string_lossy());
        match world.files().read_to_string(path) {
            Ok(text) => texts.push((name.into_owned(), text)),
            Err(error) => unreadable.push(error.to_string()),
        }
    }
    if !unreadable.is_empty() {
        return Err(Failure::user(unreadable.join("\n")));
    }
    Ok(texts)
}

/// Default number of rounds.
const ROUNDS: usize = 8;

/// `lockstep plan calibrate RUNS`: fits the calibration of every device type and writes it.
pub(super) fn calibrate(files: &[PathBuf], folder: &Path, world: &World) -> Result<(), Failure> {
    let texts = read(files, world)?;
    let mut pipelines = Pipelines::default();
    let files = self::files(&texts, None);
    if files.iter().all(|file| file.runs.is_empty()) {
        let before = Calibration::all().into_iter().map(|one| (one.name.clone(), one)).collect();
        let of =
            |(name, text): &(String, String)| score::score(name, text, &before, &mut pipelines);
        let scores: Vec<Score> = texts.iter().map(of).map(|(score, _)| score).collect();
        return Err(nothing_predicted(&scores));
    }
    let all = fit::fit(&files, ROUNDS, &mut pipelines);
    write(folder, &all, world)?;
    let score = |(name, text): &(String, String)| score::score(name, text, &all, &mut pipelines).0;
    let scores: Vec<Score> = texts.iter().map(score).collect();
    let text = render(&scores) + &fitted(&files, &all);
    output::text(&format!("{text}written to {}\n", folder.display()))
}

/// Number of rows behind each calibration.
fn fitted(files: &[File], all: &Calibrations) -> String {
    let mut text = String::new();
    for name in all.keys() {
        let of_type = |run: &&PublishedRun| run.cluster.device.calibration == name;
        let rows = files.iter().flat_map(|file| &file.runs).filter(of_type).count();
        let _ = match rows {
            0 => writeln!(text, "{name}: no rows; its prior, shifted like the others"),
            rows => writeln!(text, "{name}: fitted to {rows} rows"),
        };
    }
    text
}

pub(super) fn run(arguments: &Arguments, world: &World) -> Result<(), Failure> {
    for (key, rounds) in [("--fit", arguments.fit), ("--leave-out", arguments.leave_out)] {
        if rounds == Some(0) {
            return Err(Failure::user(format!("{key} 0 fits nothing; try {key} {ROUNDS}")));
        }
    }
    let texts = read(&arguments.files, world)?;
    let mut pipelines = Pipelines::default();
    let mut calibrations: Calibrations =
        Calibration::all().into_iter().map(|known| (known.name.clone(), known)).collect();
    if let Some(rounds) = arguments.fit {
        calibrations.extend(fit::fit(&files(&texts, None), rounds, &mut pipelines));
        if let Some(folder) = &arguments.out {
            write(folder, &calibrations, world)?;
        }
    }
    let scored: Vec<_> = texts
        .iter()
        .map(|(name, text)| score::score(name, text, &calibrations, &mut pipelines))
        .collect();
    let mut scores: Vec<Score> = scored.iter().map(|(score, _)| score.clone()).collect();
    if let Some(rounds) = arguments.leave_out {
        leave_out(&texts, &mut scores, rounds, &mut pipelines);
    }
    if arguments.json {
        output::json(&scores)?;
    } else {
        let mut text = render(&scores);
        if arguments.rows {
            for (_, outcomes) in &scored {
                text += &rows(outcomes);
            }
        }
        output::text(&text)?;
    }
    if scores.iter().all(|score| score.rows_predicted == 0) {
        return Err(nothing_predicted(&scores));
    }
    Ok(())
}

/// The error where no row is predicted: the most common reason per table.
fn nothing_predicted(scores: &[Score]) -> Failure {
    let mut lines = Vec::new();
    for Score { file, skipped, .. } in scores {
        let most = skipped.iter().max_by_key(|(_, count)| **count);
        let reason = most.map_or("it has no rows", |(reason, _)| reason);
        lines.push(format!("{file}: {reason}; `lockstep plan validate --help` lists the columns"));
    }
    Failure::user(lines.join("\n"))
}

/// Rows of all files, or of all but one.
fn files(texts: &[(String, String)], without: Option<usize>) -> Vec<File> {
    let others = texts.iter().enumerate().filter(|(index, _)| Some(*index) != without);
    others.map(|(_, (name, text))| File { name: name.clone(), runs: score::rows(text).0 }).collect()
}

/// Cross-validation: every file's error with and without it in the fit.
fn leave_out(
    texts: &[(String, String)],
    scores: &mut [Score],
    rounds: usize,
    pipelines: &mut Pipelines,
) {
    let all = fit::fit(&files(texts, None), rounds, pipelines);
    for (index, (name, text)) in texts.iter().enumerate() {
        print_status(&format!("without {name} ...\n"));
        // A device type of this file alone falls back to its prior.
        let mut others: Calibrations =
            all.keys().map(|name| (name.clone(), Calibration::prior(name))).collect();
        others.extend(fit::fit(&files(texts, Some(index)), rounds, pipelines));
        let with = score::score(name, text, &all, pipelines).0;
        let without = score::score(name, text, &others, pipelines).0;
        scores[index].left_out = with.step_time_mape.zip(without.step_time_mape);
        scores[index].left_out_median =
            with.step_time_median_error.zip(without.step_time_median_error);
    }
}

fn write(folder: &Path, all: &Calibrations, world: &World) -> Result<(), Failure> {
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
        "{:<22} {:>5} {:>5}  {:>6} {:>6} {:>6} {:>6}  {:>6} {:>6} {:>8} {:>7}\n",
        "file",
        "rows",
        "pred.",
        "mean",
        "median",
        "worst",
        "bias",
        "memory",
        "median",
        "OOM acc.",
        "regret"
    );
    for score in scores {
        let _ = writeln!(
            text,
            "{:<22} {:>5} {:>5}  {:>6} {:>6} {:>6} {:>6}  {:>6} {:>6} {:>8} {:>7}",
            score.file,
            score.rows,
            score.rows_predicted,
            percent(score.step_time_mape),
            percent(score.step_time_median_error),
            percent(score.step_time_worst),
            percent(score.step_time_bias),
            percent(score.memory_mape),
            percent(score.memory_median_error),
            percent(score.oom_accuracy),
            percent(score.regret_median),
        );
        for (table, error) in &score.tables {
            let _ = writeln!(text, "    {table}: mean {} %", percent(Some(*error)));
        }
        for (what, errors) in [("mean", score.left_out), ("median", score.left_out_median)] {
            if let Some((with, without)) = errors {
                let _ = writeln!(
                    text,
                    "    {what} {} % fitted with it, {} % without: {:+.1} points",
                    percent(Some(with)),
                    percent(Some(without)),
                    100.0 * (without - with)
                );
            }
        }
        for (reason, count) in &score.skipped {
            let _ = writeln!(text, "    {count} skipped: {reason}");
        }
    }
    text + "% errors of step time (mean, median, worst, bias) and memory (mean, median); OOM \
            accuracy; median regret of the chosen layout\n"
}

fn rows(outcomes: &[score::Outcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let _ = write!(text, "{:<26} {:<44}", outcome.id, outcome.layout);
        // Adding zero turns a rounded -0 into 0.
        let error = |(measured, predicted): (f64, f64)| {
            (1e3 * (predicted / measured - 1.0)).round() / 10.0 + 0.0
        };
        if let Some((measured, predicted)) = outcome.seconds {
            let error = error((measured, predicted));
            let (measured, predicted) = (digits(measured), digits(predicted));
            let _ = write!(text, " {measured:>7} s, predicted {predicted:>7} ({error:+.1} %)");
        }
        if let Some((measured, predicted)) = outcome.memory {
            let error = error((measured, predicted));
            let (measured, predicted) = (digits(measured / 1e9), digits(predicted / 1e9));
            let _ = write!(text, " {measured:>6} GB, predicted {predicted:>6} ({error:+.1} %)");
        }
        if let Some((false, fits)) = outcome.fits {
            let _ = write!(
                text,
                " out of memory, predicted to {}",
                if fits { "fit" } else { "be out of memory" }
            );
        }
        text.push('\n');
    }
    text
}
