//! Sources of a recipe: preset, recipe file and `--set` arguments, weakest first.
//!
//! Each source is flattened into dotted keys. Each key is looked up in the key table and its value
//! checked against the key's value type. An accepted value overrides weaker sources; a refused one
//! becomes an error and leaves the weaker value, so that checking continues and finds all errors.

mod epochs;
mod model_folder;

use std::collections::{BTreeMap, BTreeSet};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{ConfigError, Origin, alternatives};
use crate::key::{Default as KeyDefault, Key, Section, Setting};
use crate::keys::{self, SECTIONS};
use crate::nearest::nearest;
use crate::presets;
use crate::renamed_keys;
use crate::synonyms::{self, Synonym};
use crate::value::{Content, RawValue, one_line, quoted};
use crate::value_type::ValueType;

pub use epochs::EpochSteps;
pub use model_folder::{AdapterFolder, ModelFolder};

/// Texts of a recipe. Precedence: defaults, preset, file, sets.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// Name (for messages) and text of the recipe file.
    pub file: Option<(String, String)>,
    /// Name of the preset that underlies the file.
    pub preset: Option<String>,
    /// Arguments of `--set`, each `key=value`; a later one overrides an earlier one.
    pub sets: Vec<String>,
    /// Number of steps of `train.epochs`, where it is set: the caller counts the data, so that
    /// resolution remains a pure function.
    pub epoch_steps: EpochSteps,
}

/// A refused value.
pub(crate) struct PendingError {
    pub(crate) error: ConfigError,
    /// The key whose resolved value completes an empty `fix`.
    pub(crate) key: Option<&'static Key>,
}

/// All sources, merged.
#[derive(Default)]
pub(crate) struct MergedSources {
    pub(crate) settings: BTreeMap<&'static str, Setting>,
    pub(crate) pending_errors: Vec<PendingError>,
    /// Keys with an invalid value in some source; rules about them are skipped.
    pub(crate) invalid: BTreeSet<&'static str>,
    /// Whether a whole source is missing, so that rules between keys would be misleading.
    pub(crate) incomplete: bool,
}

impl MergedSources {
    /// Reads all sources.
    pub(crate) fn from_sources(sources: &Sources) -> Self {
        let mut merged = Self::default();
        if let Some(name) = &sources.preset {
            merged.take_preset(name);
        }
        if let Some((name, text)) = &sources.file {
            // The path is kept whole; only control characters are replaced.
            let name = name.replace(char::is_control, " ");
            merged.take_document(text, |line| Origin::File { name: name.clone(), line });
        }
        for argument in &sources.sets {
            merged.take_argument(argument);
        }
        merged.take_model_of_preset();
        merged.take_epochs(sources.epoch_steps);
        merged
    }

    fn take_preset(&mut self, name: &str) {
        let Some(text) = presets::text(name) else {
            self.incomplete = true;
            let (value, fix) =
                (one_line(&quoted(name)), format!("try {}", alternatives(presets::NAMES)));
            let error = ConfigError::new("preset", value, "is not known", fix, Origin::Set);
            return self.report(None, error);
        };
        self.take_document(text, |_| Origin::Preset(name.to_owned()));
    }

    /// `model.preset` replaces the model of the underlying preset and is weaker than the file and
    /// the arguments.
    fn take_model_of_preset(&mut self) {
        self.incomplete |= self.invalid.contains("model.preset");
        let Some(setting) = self.settings.get("model.preset") else { return };
        let name = setting.value.as_text().to_owned();
        let mut donor = Self::default();
        donor.take_preset(&name);
        let is_model = |key: &str| key.starts_with("model.");
        self.settings.retain(|key, setting| !is_model(key) || setting.origin.is_explicit());
        for (key, setting) in donor.settings.into_iter().filter(|(key, _)| is_model(key)) {
            self.settings.entry(key).or_insert(setting);
        }
    }

    fn take_document(&mut self, text: &str, origin: impl Fn(usize) -> Origin) {
        let line_ends: Vec<usize> = text.match_indices('\n').map(|(offset, _)| offset).collect();
        let line_of = |offset: usize| 1 + line_ends.partition_point(|end| *end < offset);
        match DeTable::parse(text) {
            Ok(table) => {
                let mut leaves = Vec::new();
                flatten_table("", table.get_ref(), text, &mut leaves);
                // The parser sorts by name; errors are reported by line.
                leaves.sort_by_key(|leaf| leaf.offset);
                for leaf in leaves {
                    self.take(&leaf.name, &leaf.given, origin(line_of(leaf.offset)));
                }
            }
            Err(error) => {
                self.incomplete = true;
                let line = line_of(error.span().map_or(0, |span| span.start));
                self.report(None, not_toml(text, line, error.message(), origin(line)));
            }
        }
    }

    fn take_argument(&mut self, argument: &str) {
        let (name, text) = match argument.split_once('=') {
            Some((name, text)) if !name.trim().is_empty() => (name.trim(), text.trim()),
            _ => {
                let key = format!("--set {}", one_line(argument));
                let (rule, fix) = ("is not of the form key=value", "try --set train.steps=100");
                return self.report(None, ConfigError::new(key, "", rule, fix, Origin::Set));
            }
        };
        let takes_text = keys::find(name).is_some_and(|key| key.value_type.takes_text());
        match DeValue::parse(text) {
            Ok(value) if !takes_text || value.get_ref().is_str() => {
                let mut leaves = Vec::new();
                flatten(name.to_owned(), &value, text, &mut leaves);
                for leaf in leaves {
                    self.take(&leaf.name, &leaf.given, Origin::Set);
                }
            }
            _ => self.take(name, &RawValue::text(text), Origin::Set),
        }
    }

    fn take(&mut self, name: &str, given: &RawValue, origin: Origin) {
        if let Some(present) = renamed_keys::present_name(name) {
            let fix = format!("use {present}");
            return self.report(None, ConfigError::new(name, "", "was renamed", fix, origin));
        }
        let Some(key) = keys::find(name) else {
            return self.report(None, unknown_key(name, given, origin));
        };
        match key.value_type.accept(given) {
            Ok(value) => {
                self.settings.insert(key.name, Setting { value, origin });
            }
            Err(refusal) => {
                self.invalid.insert(key.name);
                let fix = known_elsewhere(key, given).or(refusal.fix);
                let (part, written) =
                    refusal.part.unwrap_or_else(|| (String::new(), given.written.clone()));
                let place = one_line(&format!("{}{part}", key.name));
                let fix = fix.map_or(String::new(), |fix| format!("try {fix}"));
                let error = ConfigError::new(place, written, refusal.rule, fix, origin);
                self.report(Some(key), error);
            }
        }
    }

    fn report(&mut self, key: Option<&'static Key>, error: ConfigError) {
        self.pending_errors.push(PendingError { error, key });
    }
}

/// The error of a text that is not TOML, with the line, since the parser's message can be cryptic.
fn not_toml(text: &str, line: usize, reason: &str, origin: Origin) -> ConfigError {
    let written = one_line(text.lines().nth(line - 1).unwrap_or_default());
    let subject = if written.is_empty() { String::new() } else { format!("`{written}` is ") };
    let rule = format!("{subject}not valid TOML ({})", one_line(reason));
    ConfigError::new("", "", rule, "write key = value, with text in quotes", origin)
}

/// A key with its value and its offset in the text.
struct Leaf {
    name: String,
    given: RawValue,
    offset: usize,
}

fn flatten_table(prefix: &str, table: &DeTable<'_>, document: &str, leaves: &mut Vec<Leaf>) {
    for (key, value) in table {
        let dot = if prefix.is_empty() { "" } else { "." };
        flatten(format!("{prefix}{dot}{}", key.get_ref()), value, document, leaves);
    }
}

/// Longest name into whose tables keys are searched for, and for which a key is suggested; every
/// key is shorter. The parser bounds the depth of brackets, but not the number of dots.
const MAX_NAME_LEN: usize = 128;

/// Descends into tables down to a key or a value that is not a table.
fn flatten(name: String, value: &Spanned<DeValue<'_>>, document: &str, leaves: &mut Vec<Leaf>) {
    let descend = match value.get_ref() {
        DeValue::Table(table) if !is_key(&name) && name.len() <= MAX_NAME_LEN => Some(table),
        _ => None,
    };
    match descend {
        Some(table) if !table.is_empty() => flatten_table(&name, table, document, leaves),
        Some(_) if section(&name).is_some() => {}
        _ => {
            let given = RawValue::from_toml(value, document);
            leaves.push(Leaf { name, given, offset: value.span().start });
        }
    }
}

/// Whether this is the name of a key, at present or before it was renamed.
fn is_key(name: &str) -> bool {
    keys::find(name).is_some() || renamed_keys::present_name(name).is_some()
}

fn section(name: &str) -> Option<&'static Section> {
    SECTIONS.iter().find(|section| section.name == name)
}

/// The fix for a value that another framework has under this name or spelling.
fn known_elsewhere(key: &Key, given: &RawValue) -> Option<String> {
    let settings = synonyms::translate(key.name, given)?;
    match &settings[..] {
        [only] => only.split_once('=').map(|(_, value)| match key.value_type {
            ValueType::Integer { .. } => value.to_owned(),
            _ => quoted(value),
        }),
        several => Some(synonyms::list(several)),
    }
}

fn unknown_key(name: &str, given: &RawValue, origin: Origin) -> ConfigError {
    let (rule, fix) = match section(name) {
        Some(section) => (
            format!("is {} where a table of keys is needed", given.content.type_name()),
            format!("try {}", example_with(section, given)),
        ),
        None => match suggestion(name) {
            Suggestion::Key(known) => {
                ("is not a known key".to_owned(), format!("did you mean {known}?"))
            }
            Suggestion::Synonym(synonym) => (synonym.rule(), synonym.fix(given)),
            Suggestion::Nothing => {
                ("is not a known key".to_owned(), "`lockstep config` lists every key".to_owned())
            }
        },
    };
    ConfigError::new(one_line(name), &given.written, rule, fix, origin)
}

/// A valid line of this section: with the value, where its principal key takes it.
fn example_with(section: &Section, given: &RawValue) -> String {
    let principal = PRINCIPAL.iter().find(|(table, _)| *table == section.name);
    let principal = principal.and_then(|(_, name)| keys::find(name));
    let Some(key) = principal.filter(|_| matches!(given.content, Content::Text(_))) else {
        return example_of(section);
    };
    match (synonyms::translate(key.name, given), key.value_type.accept(given)) {
        (_, Ok(value)) => format!("{} = {value}", key.name),
        (Some(settings), _) => synonyms::list(&settings),
        (None, Err(_)) => example_of(section),
    }
}

/// Keys whose value is often given to their table.
const PRINCIPAL: &[(&str, &str)] = &[
    ("model", "model.family"),
    ("data", "data.source"),
    ("optim", "optim.name"),
    ("precision", "precision.compute"),
    ("run", "run.dir"),
    ("sync", "sync.mode"),
    ("compress", "compress.method"),
    ("offload", "offload.state"),
    ("checkpoint", "checkpoint.dir"),
];

/// A valid line of this section.
fn example_of(section: &Section) -> String {
    let mut examples = section.keys.iter().filter_map(|key| match key.default {
        KeyDefault::Fixed(text) => Some(format!("{} = {text}", key.name)),
        KeyDefault::Derived { .. } | KeyDefault::Nothing => None,
    });
    examples.next().expect("every section has a key with a fixed default")
}

/// The key that was probably meant.
enum Suggestion {
    /// A key or table, by its name.
    Key(&'static str),
    /// The counterpart of a name of another framework.
    Synonym(&'static Synonym),
    Nothing,
}

/// The key that was probably meant: the plural or singular of the name in the same table, the
/// counterpart of a name of another framework, the name in another table, a prefix of the name, or
/// the nearest spelling of any of them.
fn suggestion(name: &str) -> Suggestion {
    if name.len() > MAX_NAME_LEN {
        return Suggestion::Nothing;
    }
    let (table, leaf) = name.split_once('.').unwrap_or(("", name));
    let beside = |leaf: &str| {
        let mut beside = section(table)?.keys.iter();
        beside.find(|key| key.leaf() == leaf).map(|key| key.name)
    };
    let singular = || leaf.strip_suffix('s').and_then(beside);
    if let Some(similar) = beside(&format!("{leaf}s")).or_else(singular) {
        return Suggestion::Key(similar);
    }
    if let Some(synonym) = synonyms::find(name) {
        return Suggestion::Synonym(synonym);
    }
    let is_table = table.is_empty() || section(table).is_some();
    let misplaced = || keys::all().find(|key| is_table && key.leaf() == leaf).map(|key| key.name);
    let shorter = || leaf.match_indices('_').rev().find_map(|(end, _)| beside(&leaf[..end]));
    let respelled = || {
        let name = synonyms::normalized(name);
        keys::all().map(|key| key.name).find(|known| synonyms::normalized(known) == name)
    };
    let nearest = || {
        let tables = SECTIONS.iter().map(|section| section.name);
        nearest(name, keys::all().map(|key| key.name).chain(tables))
    };
    let key = misplaced().or_else(respelled).or_else(shorter).or_else(nearest);
    let nearest_synonym = || synonyms::nearest_to(name).map(Suggestion::Synonym);
    key.map(Suggestion::Key).or_else(nearest_synonym).unwrap_or(Suggestion::Nothing)
}
