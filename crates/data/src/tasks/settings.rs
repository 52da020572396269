//! Keys of a task file, in the format of lm-evaluation-harness: a YAML mapping, over that of the
//! file that `include` names.
//!
//! Keys that would change a result in a way that is not supported are refused; those that only
//! describe the task are ignored.

use std::path::{Path, PathBuf};

use lockstep_platform::Files;

use super::error::TaskError;
use super::score::Metric;
use super::yaml::{self, Yaml};
use crate::error::DataError;

/// Most files that include one another.
const MAX_INCLUDES: usize = 8;

/// Keys that do not change a result.
const IGNORED: [&str; 9] = [
    "dataset_name",
    "doc_to_decontamination_query",
    "group",
    "include",
    "metadata",
    "repeats",
    "should_decontaminate",
    "tag",
    "task_alias",
];

/// Keys of Python code or of other kinds of tasks.
const UNSUPPORTED: [&str; 11] = [
    "custom_dataset",
    "doc_to_audio",
    "doc_to_image",
    "filter_list",
    "generation_kwargs",
    "gen_prefix",
    "process_docs",
    "process_results",
    "unsafe_code",
    "use_prompt",
    "class",
];

/// Where a text, the choices or the answer of a document come from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Field {
    /// A field of the document or, where it has none of this name, a template.
    Named(String),
    /// A constant of all documents.
    Fixed(Yaml),
}

/// Fields of a question.
#[derive(Debug, Clone)]
pub(super) struct Fields {
    pub(super) text: Field,
    pub(super) choice: Field,
    pub(super) target: Field,
    pub(super) target_delimiter: String,
}

/// How the examples of a prompt are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sampler {
    /// At random, with the seed of lm-evaluation-harness.
    Random,
    /// The first ones.
    First,
}

/// Where the examples of a prompt are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ExampleSource {
    Split(String),
    Documents(Vec<Yaml>),
}

/// Settings of a task.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) path: PathBuf,
    pub(super) name: String,
    /// Data files of each split.
    data_files: Vec<(String, Vec<String>)>,
    /// Split of the questions.
    pub(super) split: String,
    pub(super) fields: Fields,
    pub(super) description: Option<Field>,
    pub(super) examples: ExampleSource,
    pub(super) example_fields: Fields,
    pub(super) example_delimiter: String,
    pub(super) sampler: Sampler,
    /// Whether the examples of a question are drawn from the other questions.
    pub(super) excludes_question: bool,
    pub(super) num_examples: usize,
    pub(super) metrics: Vec<Metric>,
}

impl Settings {
    /// Reads a task file and those that it includes.
    pub(super) fn read(path: &Path, files: &dyn Files) -> Result<Self, DataError> {
        let mut keys = Keys { path: path.to_owned(), entries: read_entries(path, files, 0)? };
        Ok(keys.settings()?)
    }

    /// Paths of a split's data files: in the working directory, or beside the task file.
    pub(super) fn files_of(
        &self,
        split: &str,
        files: &dyn Files,
    ) -> Result<Vec<PathBuf>, TaskError> {
        let Some((_, names)) = self.data_files.iter().find(|(name, _)| name == split) else {
            let known: Vec<&str> = self.data_files.iter().map(|(name, _)| name.as_str()).collect();
            return Err(TaskError::Key {
                path: self.path.clone(),
                key: "dataset_kwargs.data_files".to_owned(),
                reason: format!("has no split {split:?}, only {}", known.join(", ")),
            });
        };
        let locate = |name: &String| {
            let places = [PathBuf::from(name), self.path.with_file_name(name)];
            let found = places.into_iter().find(|path| files.metadata(path).is_some());
            let missing =
                || TaskError::NoDataFile { path: self.path.clone(), file: name.to_owned() };
            found.ok_or_else(missing)
        };
        names.iter().map(locate).collect()
    }
}

/// Entries of a file over those that it includes.
fn read_entries(
    path: &Path,
    files: &dyn Files,
    depth: usize,
) -> Result<Vec<(String, Yaml)>, DataError> {
    let invalid =
        |reason: &str| TaskError::Yaml { path: path.to_owned(), reason: reason.to_owned() };
    if depth > MAX_INCLUDES {
        return Err(invalid("files include one another; remove one include").into());
    }
    let text = files.read_to_string(path)?;
    let Yaml::Map(own) = yaml::parse(&text).map_err(|reason| invalid(&reason))? else {
        return Err(invalid("it is not a mapping of keys to values").into());
    };
    let mut entries: Vec<(String, Yaml)> = Vec::new();
    if let Some((_, included)) = own.iter().find(|(key, _)| key == "include") {
        let name = included.as_text().ok_or_else(|| invalid("include is not one path"))?;
        entries = read_entries(&path.with_file_name(name), files, depth + 1)?;
    }
    for (key, value) in own {
        entries.retain(|(other, _)| *other != key);
        entries.push((key, value));
    }
    Ok(entries)
}

/// Entries that have not been read yet.
struct Keys {
    path: PathBuf,
    entries: Vec<(String, Yaml)>,
}

impl Keys {
    fn error(&self, key: &str, reason: impl Into<String>) -> TaskError {
        TaskError::Key { path: self.path.clone(), key: key.to_owned(), reason: reason.into() }
    }

    /// Removes a key; null is as good as none.
    fn take(&mut self, key: &str) -> Option<Yaml> {
        let at = self.entries.iter().position(|(name, _)| name == key)?;
        Some(self.entries.remove(at).1).filter(|value| *value != Yaml::Null)
    }

    fn take_text(&mut self, key: &str) -> Result<Option<String>, TaskError> {
        match self.take(key) {
            None => Ok(None),
            Some(Yaml::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.error(key, "is not a text; put it in quotes")),
        }
    }

    fn take_map(&mut self, key: &str) -> Result<Vec<(String, Yaml)>, TaskError> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Yaml::Map(entries)) => Ok(entries),
            Some(_) => Err(self.error(key, "is not a mapping")),
        }
    }

    fn take_field(&mut self, key: &str) -> Option<Field> {
        Some(match self.take(key)? {
            Yaml::Text(text) => Field::Named(text),
            Yaml::Map(entries) => {
                Field::Fixed(Yaml::List(entries.into_iter().map(|(_, value)| value).collect()))
            }
            fixed => Field::Fixed(fixed),
        })
    }

    fn require(&mut self, key: &str) -> Result<Field, TaskError> {
        self.take_field(key).ok_or_else(|| self.error(key, "is missing"))
    }

    fn settings(&mut self) -> Result<Settings, TaskError> {
        match self.take_text("output_type")?.as_deref() {
            Some("multiple_choice") => {}
            kind => {
                let kind = kind.unwrap_or("generate_until");
                let reason = format!("= {kind} is not supported; multiple_choice is");
                return Err(self.error("output_type", reason));
            }
        }
        let name = self.take_text("task")?.ok_or_else(|| self.error("task", "is missing"))?;
        let data_files = self.data_files()?;
        let [training, validation, test] =
            ["training_split", "validation_split", "test_split"].map(|key| self.take_text(key));
        let (training, validation, test) = (training?, validation?, test?);
        let split = test.clone().or_else(|| validation.clone());
        let split = split.ok_or_else(|| self.error("test_split", "is missing"))?;
        let target_delimiter = self.take_text("target_delimiter")?;
        let fields = Fields {
            text: self.require("doc_to_text")?,
            choice: self.require("doc_to_choice")?,
            target: self.require("doc_to_target")?,
            target_delimiter: target_delimiter.unwrap_or_else(|| " ".to_owned()),
        };
        let description = self.take_field("description");
        let description = description.filter(|text| *text != Field::Named(String::new()));
        let delimiter = self.take_text("fewshot_delimiter")?.unwrap_or_else(|| "\n\n".to_owned());
        let num_examples = self.num_examples()?;
        let example_split = self.take_text("fewshot_split")?;
        let mut config =
            Self { path: self.path.clone(), entries: self.take_map("fewshot_config")? };
        let (sampler, source) = config.example_source()?;
        let split_of_source = match &source {
            Some(ExampleSource::Split(split)) => Some(split.clone()),
            _ => example_split,
        };
        let excludes_question = split_of_source == test;
        let fallback = training.or(validation).unwrap_or_else(|| split.clone());
        let examples = match (split_of_source, source) {
            (Some(split), _) => ExampleSource::Split(split),
            (None, Some(documents)) => documents,
            (None, None) => ExampleSource::Split(fallback),
        };
        let example_fields = Fields {
            text: config.take_field("doc_to_text").unwrap_or_else(|| fields.text.clone()),
            choice: config.take_field("doc_to_choice").unwrap_or_else(|| fields.choice.clone()),
            target: config.take_field("doc_to_target").unwrap_or_else(|| fields.target.clone()),
            target_delimiter: config
                .take_text("target_delimiter")?
                .unwrap_or_else(|| fields.target_delimiter.clone()),
        };
        let example_delimiter = config.take_text("fewshot_delimiter")?.unwrap_or(delimiter);
        config.refuse_others("fewshot_config.")?;
        let metrics = self.metrics()?;
        self.refuse_others("")?;
        Ok(Settings {
            path: self.path.clone(),
            name,
            data_files,
            split,
            fields,
            description,
            examples,
            example_fields,
            example_delimiter,
            sampler,
            excludes_question,
            num_examples,
            metrics,
        })
    }

    fn num_examples(&mut self) -> Result<usize, TaskError> {
        match self.take("num_fewshot") {
            None => Ok(0),
            Some(Yaml::Integer(num)) if (0..=1000).contains(&num) => Ok(num as usize),
            Some(_) => Err(self.error("num_fewshot", "is not a number from 0 to 1000")),
        }
    }

    /// Sampler of `fewshot_config`, and its split or documents.
    fn example_source(&mut self) -> Result<(Sampler, Option<ExampleSource>), TaskError> {
        let sampler = match self.take_text("sampler")?.as_deref() {
            None | Some("default") => Sampler::Random,
            Some("first_n") => Sampler::First,
            Some(other) => {
                let reason = format!("= {other} is not supported; default and first_n are");
                return Err(self.error("fewshot_config.sampler", reason));
            }
        };
        let split = self.take_text("split")?.map(ExampleSource::Split);
        let samples = match self.take("samples") {
            None => None,
            Some(Yaml::List(documents)) => Some(ExampleSource::Documents(documents)),
            Some(_) => return Err(self.error("fewshot_config.samples", "is not a list")),
        };
        Ok((sampler, split.or(samples)))
    }

    fn data_files(&mut self) -> Result<Vec<(String, Vec<String>)>, TaskError> {
        let key = "dataset_kwargs.data_files";
        match self.take_text("dataset_path")?.as_deref() {
            Some("json") => {}
            other => {
                let reason = format!(
                    "= {} is not a local file; write its documents to JSON Lines, and give \
                     dataset_path: json with {key}",
                    other.unwrap_or("null")
                );
                return Err(self.error("dataset_path", reason));
            }
        }
        let mut files = None;
        for (name, value) in self.take_map("dataset_kwargs")? {
            match name.as_str() {
                "data_files" => files = Some(value),
                "trust_remote_code" => {}
                other => {
                    let key = format!("dataset_kwargs.{other}");
                    return Err(self.error(&key, "is not supported; data_files is"));
                }
            }
        }
        let names = |value: &Yaml| match value {
            Yaml::Text(name) => Some(vec![name.clone()]),
            Yaml::List(names) => names.iter().map(|name| Some(name.as_text()?.into())).collect(),
            _ => None,
        };
        let files = files.ok_or_else(|| self.error(key, "is missing"))?;
        let splits = match &files {
            Yaml::Map(splits) => {
                let of_split =
                    |(split, value): &(String, Yaml)| Some((split.clone(), names(value)?));
                splits.iter().map(of_split).collect()
            }
            all => names(all).map(|names| vec![("train".to_owned(), names)]),
        };
        splits.ok_or_else(|| self.error(key, "is neither paths nor a mapping of splits to paths"))
    }

    fn metrics(&mut self) -> Result<Vec<Metric>, TaskError> {
        let entries = match self.take("metric_list") {
            None => return Ok(vec![Metric::Accuracy, Metric::AccuracyByChars]),
            Some(Yaml::List(entries)) => entries,
            Some(_) => return Err(self.error("metric_list", "is not a list")),
        };
        let mut metrics = Vec::new();
        for entry in entries {
            let Yaml::Map(entry) = entry else {
                return Err(self.error("metric_list", "has an entry that is not a mapping"));
            };
            let value = |name: &str| {
                let (_, value) = entry.iter().find(|(key, _)| key == name)?;
                value.as_text()
            };
            let metric = value("metric").unwrap_or_default();
            let known = Metric::from_name(metric).ok_or_else(|| {
                let known = Metric::ALL.map(Metric::name).join(", ");
                let reason = format!("has metric {metric:?}, which is not supported; {known} are");
                self.error("metric_list", reason)
            })?;
            if value("aggregation").is_some_and(|name| name != "mean") {
                return Err(self.error("metric_list", "has an aggregation other than mean"));
            }
            if !metrics.contains(&known) {
                metrics.push(known);
            }
        }
        Ok(metrics)
    }

    fn refuse_others(&self, prefix: &str) -> Result<(), TaskError> {
        for (key, value) in &self.entries {
            let name = format!("{prefix}{key}");
            if matches!(value, Yaml::Null | Yaml::Bool(false)) || IGNORED.contains(&key.as_str()) {
                continue;
            }
            return Err(if UNSUPPORTED.contains(&key.as_str()) {
                self.error(&name, "is not supported; apply it to the data before")
            } else {
                self.error(&name, "is not a key of a multiple-choice task")
            });
        }
        Ok(())
    }
}
