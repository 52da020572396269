//! Experiments and walks as the page of `lockstep serve` asks for them.

use super::notebook::{arguments, notebook, walk_notebook};
use lockstep_config::units::Bytes;
use lockstep_lab::experiments::{ALL, find};
use lockstep_lab::walk::{self, arrows, frame_svg, message_text};
use lockstep_lab::{Column, Description, Domain, LabError, Param, Study, chart, real};
use lockstep_platform::World;
use serde_json::{Value, json};

/// Most seeds that the page asks for.
const MAX_SEEDS: usize = 50;

/// The experiments with their parameters, and the walks.
pub(crate) fn choices() -> Value {
    let experiments: Vec<Value> =
        ALL.iter().map(|experiment| about(experiment.description())).collect();
    json!({ "experiments": experiments, "walks": walk::NAMES, "max_seeds": MAX_SEEDS })
}

fn about(description: &Description) -> Value {
    let Description { name, title, question, formula, look, surprise, params, sweep, .. } =
        description;
    let params: Vec<Value> = params.iter().map(parameter).collect();
    json!({
        "name": name,
        "title": title,
        "question": question,
        "formula": formula,
        "look": look,
        "surprise": surprise,
        "params": params,
        "sweep": { "key": sweep.0, "values": sweep.1 },
        "is_measured": real::is_measured(name),
    })
}

fn parameter(param: &Param) -> Value {
    let Param { key, unit, domain, meaning } = param;
    let mut value = json!({ "key": key, "unit": unit, "meaning": meaning });
    match domain {
        Domain::Range { min, max, default } => {
            value["range"] = json!({ "min": min, "max": max, "default": default });
        }
        Domain::Choice(of) => value["choices"] = json!(of),
    }
    value
}

/// Runs an experiment: its chart, table and findings, and what to save of it.
pub(crate) fn experiment(
    name: &str,
    params: &[String],
    sweeps: &[String],
    num_seeds: usize,
) -> Result<Value, LabError> {
    let experiment = find(name)?;
    let description = experiment.description();
    let mut study = Study::with(description, params, sweeps)?;
    study.num_seeds = num_seeds.clamp(1, MAX_SEEDS);
    let report = study.run(experiment)?;
    let timeline = study.timeline(experiment)?;
    let list = arguments(name, params, sweeps, study.num_seeds as u64);
    let column = |column: &Column| json!({ "name": column.name, "meaning": column.meaning });
    Ok(json!({
        "chart": chart::svg(description, &report),
        "timeline": timeline.map(|timeline| chart::timeline_svg(description, &timeline)),
        "findings": report.findings,
        "setting": report.setting(description),
        "columns": report.columns.iter().map(column).collect::<Vec<_>>(),
        "rows": report.rows.cells(),
        "csv": report.rows.csv(),
        "notebook": notebook(description, &list),
        "command": format!("lockstep lab {}", list.join(" ")),
    }))
}

/// Measures an experiment on this machine, with the parameters of the measurement, which are made
/// for a laptop: those of the page may be those of a data centre.
pub(crate) fn measure(name: &str, world: &World) -> Result<Value, LabError> {
    let request = real::Request { params: &[], sweeps: &[], seed: 0 };
    let (description, report) = real::run(name, &request, world, &mut |_| {})?;
    let column = |column: &Column| json!({ "name": column.name, "meaning": column.meaning });
    Ok(json!({
        "chart": chart::svg(&description, &report),
        "findings": report.findings,
        "setting": report.setting(&description),
        "columns": report.columns.iter().map(column).collect::<Vec<_>>(),
        "rows": report.rows.cells(),
        "command": format!("lockstep lab {name} --real"),
    }))
}

/// All rounds of a schedule as pictures.
pub(crate) fn walk(name: &str, num_ranks: usize, bytes: Bytes) -> Result<Value, LabError> {
    let walk = walk::walk(name, num_ranks, bytes)?;
    let list = [name, "--ranks", &num_ranks.to_string(), "--bytes", &format!("{}B", bytes.0)]
        .map(str::to_owned);
    let frames = walk.frames.iter().map(|frame| {
        json!({
            "title": frame.title,
            "messages": frame.messages.iter().map(message_text).collect::<Vec<_>>(),
            "arrows": arrows(frame).iter().map(|it| [it.x, it.from, it.to]).collect::<Vec<_>>(),
            "svg": frame_svg(&walk, frame),
        })
    });
    Ok(json!({
        "title": walk.title,
        "frames": frames.collect::<Vec<_>>(),
        "svg": walk::svg(&walk),
        "csv": walk::csv(&walk),
        "notebook": walk_notebook(&walk.title, &list),
        "command": format!("lockstep lab walk {}", list.join(" ")),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_walk_of_the_page_has_rounds_and_pictures() {
        let names = choices()["walks"].as_array().expect("a list").clone();
        for name in names.iter().map(|name| name.as_str().expect("a name")) {
            for ranks in [2, 5, 8] {
                let walk = walk(name, ranks, Bytes(1 << 20)).expect(name);
                let frames = walk["frames"].as_array().expect("a list");
                assert!(frames.len() >= 2, "{name}, {ranks} ranks: {} rounds", frames.len());
                let num_messages: usize = frames
                    .iter()
                    .map(|frame| frame["messages"].as_array().expect("a list").len())
                    .sum();
                let lines = walk["csv"].as_str().expect("a text").lines().count();
                assert_eq!(lines, 1 + num_messages, "{name}");
                for frame in frames {
                    assert!(
                        frame["svg"].as_str().is_some_and(|svg| svg.starts_with("<svg")),
                        "{name}"
                    );
                }
            }
        }
        assert!(walk("rings", 4, Bytes(1000)).is_err());
    }

    #[test]
    fn an_experiment_comes_with_what_to_save() {
        let params = ["variation=0.2".to_owned()];
        let sweeps = ["workers=2,8".to_owned()];
        let answer = experiment("stragglers", &params, &sweeps, 3).expect("an answer");
        let command = "lockstep lab stragglers --param variation=0.2 --sweep workers=2,8 --seeds 3";
        assert_eq!(answer["command"], command);
        assert!(answer["csv"].as_str().expect("a text").starts_with("workers,"));
        let text = answer["notebook"].as_str().expect("a text");
        let notebook: Value = serde_json::from_str(text).expect("JSON");
        let run = notebook["cells"][1]["source"].as_str().expect("a cell");
        assert!(
            run.contains("\"--param\", \"variation=0.2\", \"--sweep\", \"workers=2,8\""),
            "{run}"
        );
        assert!(experiment("stragglers", &["workers=x".to_owned()], &[], 1).is_err());
        assert!(experiment("straggler", &[], &[], 1).is_err());
    }
}
