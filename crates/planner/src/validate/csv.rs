//! CSV parser with quoted cells, enough for published tables.

use std::collections::BTreeMap;

/// A row, by column name.
pub type Row = BTreeMap<String, String>;

/// Rows of a file whose first line names the columns.
pub fn parse(text: &str) -> Vec<Row> {
    let mut lines = records(text).into_iter();
    let Some(header) = lines.next() else { return Vec::new() };
    lines
        .filter(|cells| cells.iter().any(|cell| !cell.is_empty()))
        .map(|cells| {
            // Missing cells at the end of a row are empty.
            let cells = cells.into_iter().chain(std::iter::repeat(String::new()));
            header.iter().cloned().zip(cells).collect()
        })
        .collect()
}

fn records(text: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell) = (Vec::new(), Vec::new(), String::new());
    let mut is_quoted = false;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '"' if is_quoted && letters.peek() == Some(&'"') => {
                cell.push('"');
                letters.next();
            }
            '"' => is_quoted = !is_quoted,
            ',' if !is_quoted => row.push(std::mem::take(&mut cell)),
            '\n' if !is_quoted => {
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            '\r' => {}
            letter => cell.push(letter),
        }
    }
    if !cell.is_empty() || !row.is_empty() {
        row.push(cell);
        rows.push(row);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_commas_and_quotes_are_part_of_a_cell() {
        let rows = parse("a,b\n\"1, \"\"2\"\"\",3\r\n4,\n");
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0]["a"], "1, \"2\"");
        assert_eq!(rows[0]["b"], "3");
        assert_eq!(rows[1]["b"], "");
    }
}
