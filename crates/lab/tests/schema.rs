//! Names and units of parameters and columns are an interface of scripts; `schema.txt` changes only
//! on purpose.

use lockstep_lab::experiments::ALL;
use std::fmt::Write;

#[test]
fn parameters_and_columns_match_the_schema() {
    let mut found = String::new();
    for experiment in ALL {
        let description = experiment.description();
        let _ = writeln!(found, "{}", description.name);
        for param in description.params {
            let _ = writeln!(found, "  parameter {} [{}]", param.key, param.unit);
        }
        for column in description.columns {
            let _ = writeln!(found, "  column {} [{}]", column.name, column.unit);
        }
    }
    let known = include_str!("schema.txt");
    let differs = found.lines().zip(known.lines()).find(|(found, known)| found != known);
    assert_eq!(differs, None, "names changed; all of them now:\n{found}");
    assert_eq!(found, known, "names changed; all of them now:\n{found}");
}
