//! A Jupyter notebook (nbformat 4.5) that runs an experiment with this program and draws its table.

use lockstep_lab::Description;
use serde_json::{Value, json};
use std::fmt::Write;

/// The notebook of `lockstep lab` with these arguments.
pub(super) fn notebook(description: &Description, arguments: &[String]) -> String {
    let Description { title, question, formula, look, .. } = description;
    let about = format!(
        "# {title}\n\n**{question}**\n\nFormula: {formula}\n\nLook at: {look}\n\nThe cells call \
         `lockstep`, which must be on the path."
    );
    let mut run = "import json\nimport subprocess\n\n".to_owned();
    run += "command = [\"lockstep\", \"lab\", \"--json\"";
    for argument in arguments {
        let _ = write!(run, ", {}", json!(argument));
    }
    run += "]\nresult = subprocess.run(command, check=True, capture_output=True)\n\
            report = json.loads(result.stdout)\nprint(*report[\"findings\"], sep=\"\\n\")";
    let table = "import pandas\n\ntable = pandas.DataFrame(report[\"rows\"])\ntable";
    let chart = &description.chart;
    let columns = json!(chart.y);
    let mut draw = format!("x, columns = {}, {columns}\n", json!(chart.x));
    let logarithmic =
        format!("logx={}, logy={}, marker=\"o\"", python(chart.log_x), python(chart.log_y));
    match chart.series {
        Some(series) => {
            let _ = write!(
                draw,
                "axes = None\nfor name, rows in table.groupby({}):\n    axes = rows.plot(x=x, \
                 y=columns[0], label=name, ax=axes, {logarithmic})\naxes.set_ylabel(columns[0])",
                json!(series)
            );
        }
        None => {
            let _ = write!(draw, "table.plot(x=x, y=columns, {logarithmic})");
        }
    }
    let cells = [
        cell(0, "markdown", &about),
        cell(1, "code", &run),
        cell(2, "code", table),
        cell(3, "code", &draw),
    ];
    notebook_of(&cells)
}

fn notebook_of(cells: &[Value]) -> String {
    let kernel = json!({ "display_name": "Python 3", "language": "python", "name": "python3" });
    let notebook = json!({
        "cells": cells,
        "metadata": { "kernelspec": kernel, "language_info": { "name": "python" } },
        "nbformat": 4,
        "nbformat_minor": 5,
    });
    format!("{notebook:#}\n")
}

/// The notebook of a walk: its messages as a table.
pub(super) fn walk_notebook(title: &str, arguments: &[String]) -> String {
    let about = format!(
        "# {title}\n\nEach round delivers the messages that are sent and awaited at the same time. \
         The cells call `lockstep`, which must be on the path."
    );
    let mut list = String::new();
    for argument in arguments {
        let _ = write!(list, ", {}", json!(argument));
    }
    let run = format!(
        "import json\nimport subprocess\n\n\
         command = [\"lockstep\", \"lab\", \"walk\", \"--json\"{list}]\n\
         result = subprocess.run(command, check=True, capture_output=True)\n\
         rounds = json.loads(result.stdout)[\"rounds\"]\n\
         print(len(rounds), \"rounds,\", sum(len(it[\"messages\"]) for it in rounds), \"messages\")"
    );
    let table = "import pandas\n\nmessages = [\n    {\"round\": number, **message}\n    \
                 for number, it in enumerate(rounds)\n    for message in it[\"messages\"]\n]\n\
                 table = pandas.DataFrame(messages)\ntable";
    notebook_of(&[cell(0, "markdown", &about), cell(1, "code", &run), cell(2, "code", table)])
}

/// Arguments of `lockstep lab` for an experiment.
pub(super) fn arguments(
    name: &str,
    params: &[String],
    sweeps: &[String],
    num_seeds: u64,
) -> Vec<String> {
    let mut list = vec![name.to_owned()];
    list.extend(params.iter().flat_map(|pair| ["--param".to_owned(), pair.clone()]));
    list.extend(sweeps.iter().flat_map(|pair| ["--sweep".to_owned(), pair.clone()]));
    if num_seeds > 1 {
        list.extend(["--seeds".to_owned(), num_seeds.to_string()]);
    }
    list
}

const fn python(flag: bool) -> &'static str {
    if flag { "True" } else { "False" }
}

fn cell(number: usize, kind: &str, source: &str) -> Value {
    let mut cell = json!({
        "cell_type": kind,
        "id": format!("cell-{number}"),
        "metadata": {},
        "source": source,
    });
    if kind == "code" {
        cell["execution_count"] = Value::Null;
        cell["outputs"] = json!([]);
    }
    cell
}
