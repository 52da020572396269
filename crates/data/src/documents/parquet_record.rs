//! Records of nested Parquet columns as JSON, assembled from their levels (Dremel, Melnik et al.
//! 2010).
//!
//! A leaf of a column has a definition level with every entry, which counts the optional and
//! repeated fields above it that are there, and a repetition level, which tells the list that the
//! entry continues. [`Field`] is the tree of a column; [`Field::write`] takes the entries of one
//! record from its leaves. Supported are structs, lists in the three levels of the standard, texts,
//! numbers and booleans, as Arrow writes them; anything else is refused. A null is left out, as in
//! the JSON of such a record.

use parquet::basic::{ConvertedType, LogicalType, Repetition, Type as Physical};
use parquet::schema::types::Type;

/// Deepest nesting of fields.
const MAX_DEPTH: usize = 32;

/// Why entries are no record: the file is damaged.
pub(super) const DAMAGED: &str = "the levels of its columns contradict each other";

/// A column or a part of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Field {
    kind: Kind,
    /// Definition level from which on it is not null.
    present: i16,
    /// Its leaves among those of the column.
    leaves: std::ops::Range<usize>,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Value,
    Struct(Vec<(String, Field)>),
    List {
        element: Box<Field>,
        /// Definition level from which on it has an element.
        filled: i16,
        /// Repetition level of a further element.
        repeated: i16,
    },
}

/// Entries of a leaf: levels, and the values of those that are not null.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Repetition and definition levels.
    pub(super) levels: Vec<[i16; 2]>,
    /// Values as JSON, or the offset of a byte that is not UTF-8.
    pub(super) values: Vec<Result<String, usize>>,
    next_level: usize,
    next_value: usize,
}

/// Why a record cannot be written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum RecordError {
    Damaged,
    /// A text is not UTF-8 from this byte on.
    NotUtf8(usize),
}

impl Entries {
    /// Forgets all entries.
    pub(super) fn clear(&mut self) {
        self.levels.clear();
        self.values.clear();
        (self.next_level, self.next_value) = (0, 0);
    }

    /// Levels of the next entry.
    fn peek(&self) -> Option<[i16; 2]> {
        self.levels.get(self.next_level).copied()
    }

    /// Whether the next entry begins a record, or there is none.
    fn is_at_record(&self) -> bool {
        self.peek().is_none_or(|[repetition, _]| repetition == 0)
    }

    fn definition(&self) -> Result<i16, RecordError> {
        self.peek().map(|[_, definition]| definition).ok_or(RecordError::Damaged)
    }
}

impl Field {
    /// Tree of a column, or why it is not supported.
    pub(super) fn of_column(column: &Type) -> Result<Self, String> {
        let mut num_leaves = 0;
        Self::of(column, [0, 0], &mut num_leaves, 0)
    }

    /// Number of leaves.
    pub(super) fn num_leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Tree of a field below fields of these repetition and definition levels.
    fn of(
        field: &Type,
        [repetition, definition]: [i16; 2],
        num_leaves: &mut usize,
        depth: usize,
    ) -> Result<Self, String> {
        let info = field.get_basic_info();
        let present = match info.repetition() {
            Repetition::REQUIRED => definition,
            Repetition::OPTIONAL => definition + 1,
            Repetition::REPEATED => {
                return Err(format!("{} is repeated outside of a list", info.name()));
            }
        };
        if depth == MAX_DEPTH {
            return Err(format!("it is nested more than {MAX_DEPTH} deep"));
        }
        let first = *num_leaves;
        let kind = if field.is_primitive() {
            *num_leaves += 1;
            refuse_other_values(field)?;
            Kind::Value
        } else if is_list(field) {
            let element = element_of(field)?;
            let levels = [repetition + 1, present + 1];
            let element = Self::of(element, levels, num_leaves, depth + 1)?;
            let [repeated, filled] = levels;
            Kind::List { element: Box::new(element), filled, repeated }
        } else {
            if info.converted_type() != ConvertedType::NONE || info.logical_type_ref().is_some() {
                return Err(format!("{} is a {:?}", info.name(), info.converted_type()));
            }
            if field.get_fields().is_empty() {
                return Err(format!("{} is a struct without fields", info.name()));
            }
            let fields = field.get_fields().iter().map(|field| {
                let below = Self::of(field, [repetition, present], num_leaves, depth + 1)?;
                Ok((field.name().to_owned(), below))
            });
            Kind::Struct(fields.collect::<Result<_, String>>()?)
        };
        Ok(Self { kind, present, leaves: first..*num_leaves })
    }

    /// Appends one record as JSON. `leaves` are those of the column. Returns whether it is not
    /// null; of a null nothing is appended.
    pub(super) fn write_record(
        &self,
        leaves: &mut [Entries],
        out: &mut String,
    ) -> Result<bool, RecordError> {
        let is_some = match self.lists() {
            Some(lists) => self.write_struct_of_lists(lists, leaves, out)?,
            None => self.write(leaves, out)?,
        };
        let is_whole = leaves.iter().all(Entries::is_at_record);
        if is_whole { Ok(is_some) } else { Err(RecordError::Damaged) }
    }

    fn write(&self, leaves: &mut [Entries], out: &mut String) -> Result<bool, RecordError> {
        let definition = leaves[self.leaves.start].definition()?;
        if definition < self.present {
            self.skip_entry(self.present, leaves)?;
            return Ok(false);
        }
        match &self.kind {
            Kind::Value => {
                let leaf = &mut leaves[self.leaves.start];
                let value = leaf.values.get_mut(leaf.next_value).ok_or(RecordError::Damaged)?;
                match value {
                    Ok(value) => out.push_str(value),
                    Err(offset) => return Err(RecordError::NotUtf8(*offset)),
                }
                leaf.next_value += 1;
                leaf.next_level += 1;
            }
            Kind::Struct(fields) => {
                let mut object = Object::open(out);
                for (name, field) in fields {
                    object.member(name, |out| field.write(leaves, out))?;
                }
                object.close();
            }
            Kind::List { .. } => {
                out.push('[');
                let mut is_first = true;
                self.for_each_element(leaves, |element, leaves| {
                    if !std::mem::take(&mut is_first) {
                        out.push(',');
                    }
                    // A null element keeps its place.
                    if !element.write(leaves, out)? {
                        out.push_str("null");
                    }
                    Ok(())
                })?;
                out.push(']');
            }
        }
        Ok(true)
    }

    /// Calls `write` for each element of a list that is not null.
    fn for_each_element(
        &self,
        leaves: &mut [Entries],
        mut write: impl FnMut(&Self, &mut [Entries]) -> Result<(), RecordError>,
    ) -> Result<(), RecordError> {
        let Kind::List { element, filled, repeated } = &self.kind else {
            return Err(RecordError::Damaged);
        };
        if leaves[self.leaves.start].definition()? < *filled {
            return self.skip_entry(*filled, leaves);
        }
        loop {
            write(element, leaves)?;
            let continues = |leaf: &Entries| leaf.peek().is_some_and(|[r, _]| r == *repeated);
            let is_more = continues(&leaves[self.leaves.start]);
            // The leaves of an element are as many times there as its first one.
            if leaves[self.leaves.clone()].iter().any(|leaf| continues(leaf) != is_more) {
                return Err(RecordError::Damaged);
            }
            if !is_more {
                return Ok(());
            }
        }
    }

    /// Skips the one entry that every leaf has for a field that is not there.
    fn skip_entry(&self, below: i16, leaves: &mut [Entries]) -> Result<(), RecordError> {
        for leaf in &mut leaves[self.leaves.clone()] {
            if leaf.definition()? >= below {
                return Err(RecordError::Damaged);
            }
            leaf.next_level += 1;
        }
        Ok(())
    }

    /// The lists of a column that is a struct of nothing else: a list of structs as `datasets`
    /// stores its type `Sequence`.
    fn lists(&self) -> Option<&[(String, Self)]> {
        let Kind::Struct(fields) = &self.kind else { return None };
        let is_list = |(_, field): &(String, Self)| matches!(field.kind, Kind::List { .. });
        fields.iter().all(is_list).then_some(fields)
    }

    /// Writes a struct of lists as the list of structs that it is.
    fn write_struct_of_lists(
        &self,
        lists: &[(String, Self)],
        leaves: &mut [Entries],
        out: &mut String,
    ) -> Result<bool, RecordError> {
        if leaves[self.leaves.start].definition()? < self.present {
            self.skip_entry(self.present, leaves)?;
            return Ok(false);
        }
        let mut columns = Vec::with_capacity(lists.len());
        for (name, list) in lists {
            let mut elements = Vec::new();
            if leaves[list.leaves.start].definition()? < list.present {
                list.skip_entry(list.present, leaves)?;
            } else {
                list.for_each_element(leaves, |element, leaves| {
                    let mut text = String::new();
                    let is_some = element.write(leaves, &mut text)?;
                    elements.push(is_some.then_some(text));
                    Ok(())
                })?;
            }
            columns.push((name, elements));
        }
        let len = columns.iter().map(|(_, elements)| elements.len()).max().unwrap_or(0);
        // A list that is null or empty has no value for any element.
        if columns.iter().any(|(_, elements)| elements.len() != len && !elements.is_empty()) {
            return Err(RecordError::Damaged);
        }
        out.push('[');
        for index in 0..len {
            if index > 0 {
                out.push(',');
            }
            let mut object = Object::open(out);
            for (name, elements) in &columns {
                object.member(name, |out| {
                    let element = elements.get(index).and_then(Option::as_ref);
                    out.push_str(element.map_or("", String::as_str));
                    Ok(element.is_some())
                })?;
            }
            object.close();
        }
        out.push(']');
        Ok(true)
    }
}

/// A JSON object that is being written.
pub(super) struct Object<'a> {
    out: &'a mut String,
    is_empty: bool,
}

impl<'a> Object<'a> {
    pub(super) fn open(out: &'a mut String) -> Self {
        out.push('{');
        Self { out, is_empty: true }
    }

    /// Adds a member, whose value `write` appends unless it is null.
    pub(super) fn member<E>(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut String) -> Result<bool, E>,
    ) -> Result<(), E> {
        let before = self.out.len();
        if !self.is_empty {
            self.out.push(',');
        }
        self.out.push_str(&json_text(name));
        self.out.push(':');
        if write(self.out)? {
            self.is_empty = false;
        } else {
            self.out.truncate(before);
        }
        Ok(())
    }

    pub(super) fn close(self) {
        self.out.push('}');
    }
}

/// A text as JSON.
pub(super) fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Whether a group is annotated as a list.
fn is_list(field: &Type) -> bool {
    let info = field.get_basic_info();
    let is_logical = matches!(info.logical_type_ref(), Some(LogicalType::List));
    is_logical || info.converted_type() == ConvertedType::LIST
}

/// Element of a list: the only field of the only, repeated field.
fn element_of(list: &Type) -> Result<&Type, String> {
    if let [middle] = list.get_fields()
        && middle.get_basic_info().repetition() == Repetition::REPEATED
        && !middle.is_primitive()
        && let [element] = middle.get_fields()
    {
        return Ok(element);
    }
    Err(format!("{} is a list in a form that Arrow does not write", list.name()))
}

/// Refuses a leaf that is no text, number or boolean.
fn refuse_other_values(leaf: &Type) -> Result<(), String> {
    use ConvertedType as Converted;
    let (info, physical) = (leaf.get_basic_info(), leaf.get_physical_type());
    let is_plain = match info.converted_type() {
        Converted::NONE => {
            let logical = info.logical_type_ref();
            // A column without any value has the type that is unknown.
            logical.is_none_or(|logical| {
                matches!(logical, LogicalType::String | LogicalType::Json | LogicalType::Unknown)
            })
        }
        // Larger unsigned numbers are written as signed ones of the same bits.
        converted => matches!(
            converted,
            Converted::UTF8
                | Converted::ENUM
                | Converted::JSON
                | Converted::INT_8
                | Converted::INT_16
                | Converted::INT_32
                | Converted::INT_64
                | Converted::UINT_8
                | Converted::UINT_16
        ),
    };
    let is_known = !matches!(physical, Physical::INT96 | Physical::FIXED_LEN_BYTE_ARRAY);
    if is_plain && is_known {
        return Ok(());
    }
    let converted = match info.converted_type() {
        Converted::NONE => String::new(),
        converted => format!(" ({converted})"),
    };
    Err(format!("{} holds {physical}{converted}, which is no text or number", leaf.name()))
}

#[cfg(test)]
mod tests {
    use parquet::schema::parser::parse_message_type;

    use super::*;

    fn field(schema: &str) -> Result<Field, String> {
        let end = if schema.ends_with('}') { "" } else { ";" };
        let message = parse_message_type(&format!("message m {{ {schema}{end} }}")).unwrap();
        Field::of_column(&message.get_fields()[0])
    }

    /// Entries of a leaf: repetition level, definition level, and the value, if there is one.
    fn leaf(entries: &[(i16, i16, Option<&str>)]) -> Entries {
        Entries {
            levels: entries.iter().map(|(rep, def, _)| [*rep, *def]).collect(),
            values: entries.iter().filter_map(|entry| entry.2).map(|v| Ok(json_text(v))).collect(),
            ..Entries::default()
        }
    }

    /// All records, a null as none.
    fn records(field: &Field, mut leaves: Vec<Entries>) -> Result<Vec<String>, RecordError> {
        let mut records = Vec::new();
        while leaves[0].peek().is_some() {
            let mut out = String::new();
            let is_some = field.write_record(&mut leaves, &mut out)?;
            records.push(if is_some { out } else { "none".to_owned() });
        }
        Ok(records)
    }

    const MESSAGES: &str = "optional group messages (LIST) { repeated group list { optional group \
                            element { optional binary role (UTF8); required group more { optional \
                            group tags (LIST) { repeated group list { optional binary element \
                            (UTF8); } } } } } }";

    #[test]
    fn nested_lists_are_assembled_from_their_levels() {
        let messages = field(MESSAGES).unwrap();
        assert_eq!(messages.num_leaves(), 2);
        // A list of two structs; null; empty; a null element; a struct of nulls.
        let role = leaf(&[
            (0, 4, Some("a")),
            (1, 4, Some("b")),
            (0, 0, None),
            (0, 1, None),
            (0, 2, None),
            (0, 3, None),
        ]);
        let tags = leaf(&[
            (0, 6, Some("x")),
            (2, 5, None),
            (2, 6, Some("y")),
            (1, 4, None),
            (0, 0, None),
            (0, 1, None),
            (0, 2, None),
            (0, 3, None),
        ]);
        assert_eq!(
            records(&messages, vec![role, tags]).unwrap(),
            [
                r#"[{"role":"a","more":{"tags":["x",null,"y"]}},{"role":"b","more":{"tags":[]}}]"#,
                "none",
                "[]",
                "[null]",
                r#"[{"more":{}}]"#,
            ]
        );
    }

    #[test]
    fn a_struct_of_lists_is_a_list_of_structs() {
        let list = |name: &str| {
            format!(
                "optional group {name} (LIST) {{ repeated group list {{ optional binary element \
                 (UTF8); }} }}"
            )
        };
        let messages =
            field(&format!("optional group m {{ {} {} }}", list("role"), list("name"))).unwrap();
        let role = leaf(&[(0, 4, Some("a")), (1, 4, Some("b")), (0, 0, None), (0, 2, None)]);
        let name = leaf(&[(0, 4, Some("x")), (1, 3, None), (0, 0, None), (0, 2, None)]);
        assert_eq!(
            records(&messages, vec![role, name]).unwrap(),
            [r#"[{"role":"a","name":"x"},{"role":"b"}]"#, "none", "[]"]
        );
        let role = leaf(&[(0, 4, Some("a")), (1, 4, Some("b"))]);
        let name = leaf(&[(0, 4, Some("x")), (1, 4, Some("y")), (1, 4, Some("z"))]);
        assert_eq!(records(&messages, vec![role, name]), Err(RecordError::Damaged));
    }

    #[test]
    fn contradicting_levels_are_an_error() {
        let messages = field(MESSAGES).unwrap();
        for (role, tags) in [
            // More elements in one leaf than in the other, a null beside a value, no entry, a
            // value that is missing, and a record that does not begin.
            (leaf(&[(0, 4, Some("a")), (1, 4, Some("b"))]), leaf(&[(0, 4, None)])),
            (leaf(&[(0, 0, None)]), leaf(&[(0, 6, Some("x"))])),
            (leaf(&[(0, 4, Some("a"))]), leaf(&[])),
            (leaf(&[(0, 4, None)]), leaf(&[(0, 4, None)])),
            (leaf(&[(0, 4, Some("a")), (2, 4, Some("b"))]), leaf(&[(0, 4, None)])),
        ] {
            assert_eq!(records(&messages, vec![role, tags]), Err(RecordError::Damaged));
        }
        let mut bad = leaf(&[(0, 1, None)]);
        bad.values.push(Err(3));
        bad.levels = vec![[0, 1]];
        let text = field("optional binary text (UTF8)").unwrap();
        assert_eq!(records(&text, vec![bad]), Err(RecordError::NotUtf8(3)));
    }

    #[test]
    fn other_schemas_are_refused_with_the_field() {
        for (schema, reason) in [
            ("repeated binary turn (UTF8)", "turn is repeated outside of a list"),
            ("optional int96 at", "at holds INT96, which is no text or number"),
            ("optional int64 at (TIMESTAMP_MICROS)", "at holds INT64 (TIMESTAMP_MICROS)"),
            (
                "optional group m (MAP) { repeated group key_value { required binary key (UTF8); \
                 optional binary value (UTF8); } }",
                "m is a MAP",
            ),
            (
                "optional group turns (LIST) { repeated binary array (UTF8); }",
                "turns is a list in a form that Arrow does not write",
            ),
        ] {
            let error = field(schema).unwrap_err();
            assert!(error.starts_with(reason), "{error}");
        }
        let deep = (0..40).fold("optional binary x (UTF8);".to_owned(), |inner, n| {
            format!("optional group g{n} {{ {inner} }}")
        });
        assert!(field(&deep).unwrap_err().contains("nested more than 32 deep"));
    }
}
