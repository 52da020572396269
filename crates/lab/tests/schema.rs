//! What scripts rely on: the names and units of parameters and columns. A name that goes breaks
//! somebody's script, so `schema.txt` is changed on purpose or not at all.

use lockstep_lab::experiments::ALL;
use std::fmt::Write;

#[test]
fn parameters_and_columns_are_called_as_before() {
    let mut found = String::new();
    for experiment in ALL {
        let card = experiment.card();
        let _ = writeln!(found, "{}", card.name);
        for param in card.params {
            let _ = writeln!(found, "  parameter {} [{}]", param.key, param.unit);
        }
        for column in card.columns {
            let _ = writeln!(found, "  column {} [{}]", column.name, column.unit);
        }
    }
    let known = include_str!("schema.txt");
    let differs = found.lines().zip(known.lines()).find(|(found, known)| found != known);
    assert_eq!(differs, None, "names changed; all of them now:\n{found}");
    assert_eq!(found, known, "names changed; all of them now:\n{found}");
}
