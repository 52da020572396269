//! Errors of a recipe, each with a fix.
//!
//! All errors are reported at once, with key, value, broken rule and a value that works. A
//! [`ConfigError`] displays as one line; [`ConfigErrors`] is the list of all of them.

use std::fmt;

use crate::Blame;

/// Origin of a value, weakest first: a later one overrides an earlier one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    /// Default.
    Default,
    /// A preset, by name.
    Preset(String),
    /// A weight folder, by the name of its configuration file.
    Folder(String),
    /// A line of the recipe file.
    File {
        /// The name of the file as it was given.
        name: String,
        /// The line, counted from 1.
        line: usize,
    },
    /// A `--set key=value` argument.
    Set,
}

impl Origin {
    /// Whether the user set it for this run, in a file or an argument.
    pub const fn is_explicit(&self) -> bool {
        matches!(self, Self::File { .. } | Self::Set)
    }

    /// Position in the order of precedence; lines of one file are equal in strength.
    pub(crate) const fn strength(&self) -> u8 {
        match self {
            Self::Default => 0,
            Self::Preset(_) => 1,
            Self::Folder(_) => 2,
            Self::File { .. } => 3,
            Self::Set => 4,
        }
    }
}

/// One error of a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    /// The key, such as `model.heads`; empty when the text is not even TOML.
    pub key: String,
    /// The value as TOML; empty where there is none.
    pub value: String,
    /// The broken rule, continuing "key = value".
    pub rule: String,
    /// A value that works, or another action.
    pub fix: String,
    /// Origin of the value.
    pub origin: Origin,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::File { name, line } => write!(f, "{name}:{line}: ")?,
            Origin::Preset(name) => write!(f, "preset {name}: ")?,
            Origin::Folder(name) => write!(f, "{name}: ")?,
            Origin::Default | Origin::Set => {}
        }
        match (self.key.as_str(), self.value.as_str()) {
            ("", _) => {}
            (key, "") => write!(f, "{key} ")?,
            (key, value) => write!(f, "{key} = {value} ")?,
        }
        write!(f, "{}; {}", self.rule, self.fix)
    }
}

impl std::error::Error for ConfigError {}

impl ConfigError {
    pub(crate) fn new(
        key: impl Into<String>,
        value: impl Into<String>,
        rule: impl Into<String>,
        fix: impl Into<String>,
        origin: Origin,
    ) -> Self {
        let (key, value, rule, fix) = (key.into(), value.into(), rule.into(), fix.into());
        Self { key, value, rule, fix, origin }
    }
}

/// All errors of a recipe, in the order of the sources; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The single errors.
    pub errors: Vec<ConfigError>,
}

impl ConfigErrors {
    /// An invalid recipe is the user's to fix.
    pub const fn blame(&self) -> Blame {
        Blame::User
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.errors.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

impl IntoIterator for ConfigErrors {
    type Item = ConfigError;
    type IntoIter = std::vec::IntoIter<ConfigError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.into_iter()
    }
}

/// "1", "1 or 2", "1, 2 or 3".
pub(crate) fn alternatives<T: fmt::Display>(values: &[T]) -> String {
    let texts: Vec<String> = values.iter().map(ToString::to_string).collect();
    match texts.split_last() {
        None => String::new(),
        Some((only, [])) => only.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(origin: Origin) -> ConfigError {
        let rule = "does not divide model.width = 192";
        ConfigError::new("model.heads", "5", rule, "try 4 or 6", origin)
    }

    #[test]
    fn an_error_shows_its_origin() {
        let plain = "model.heads = 5 does not divide model.width = 192; try 4 or 6";
        let file = Origin::File { name: "a.toml".into(), line: 4 };
        assert_eq!(error(Origin::Set).to_string(), plain);
        assert_eq!(error(Origin::Default).to_string(), plain);
        assert_eq!(
            error(Origin::Preset("tiny".into())).to_string(),
            format!("preset tiny: {plain}")
        );
        assert_eq!(error(file).to_string(), format!("a.toml:4: {plain}"));
    }

    #[test]
    fn a_list_of_errors_has_one_line_each_and_blames_the_user() {
        let errors = ConfigErrors { errors: vec![error(Origin::Set), error(Origin::Default)] };
        assert_eq!(errors.to_string().lines().count(), 2);
        assert_eq!(errors.blame(), Blame::User);
        assert_eq!(errors.into_iter().count(), 2);
    }

    #[test]
    fn alternatives_read_as_a_sentence() {
        assert_eq!(alternatives(&[1]), "1");
        assert_eq!(alternatives(&[1, 2]), "1 or 2");
        assert_eq!(alternatives(&["a", "b", "c"]), "a, b or c");
        assert_eq!(alternatives::<u8>(&[]), "");
    }
}
