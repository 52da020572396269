//! Search space: the values of each key, and grid or random combinations of them.
//!
//! A grid has every combination of the lists; the last key changes fastest. Random search
//! (Bergstra and Bengio, 2012) draws each key independently from a list or a range. Where few of
//! many keys matter it finds good values sooner than a grid of the same size, because every run
//! tries a new value of every key. A draw is a function of (seed, key, index of the draw): adding a
//! key leaves the values of the others unchanged, and a larger search starts with the same runs.

use lockstep_tensor::math::scalar;
use lockstep_tensor::random::Key;
use std::collections::BTreeSet;
use std::slice::from_ref;

/// Largest number of runs of a sweep.
const MAX_RUNS: usize = 10_000;

/// Largest number of draws per run, repetitions included.
const MAX_DRAWS: u64 = 1000;

/// One key and its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// The recipe key.
    pub key: String,
    values: Values,
}

#[derive(Clone, Debug, PartialEq)]
enum Values {
    List(Vec<String>),
    Range { scale: Scale, low: f64, high: f64 },
}

/// Distribution over a range.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scale {
    /// Uniform.
    Linear,
    /// Log-uniform.
    Log,
    /// Uniform over whole numbers.
    Int,
}

/// One value per axis, as `--set` takes it.
pub type Choice = Vec<String>;

impl Axis {
    /// Reads `key=a,b,c` or `key=log:low..high`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let example = "try --over optim.lr=1e-3,3e-3 or --over optim.lr=log:1e-4..1e-1";
        let Some((key, values)) = text.split_once('=').filter(|(key, _)| !key.trim().is_empty())
        else {
            return Err(format!("--over {text} is not of the form KEY=VALUES; {example}"));
        };
        let (key, values) = (key.trim().to_owned(), values.trim());
        if let Some(range) = range(values) {
            let refuse = |rule: &str| format!("--over {key}={values} {rule}; {example}");
            let values = range.map_err(refuse)?;
            return Ok(Self { key, values });
        }
        let list = split(values);
        if list.iter().any(String::is_empty) {
            return Err(format!("--over {text} has an empty value; {example}"));
        }
        let distinct: BTreeSet<_> = list.iter().collect();
        if distinct.len() < list.len() {
            return Err(format!("--over {text} names a value twice; name each once"));
        }
        Ok(Self { key, values: Values::List(list) })
    }

    fn draw(&self, seed: u64, number: u64) -> String {
        let uniform = Key::new(seed, &self.key).with(number).uniform_f64(0);
        match &self.values {
            Values::List(list) => {
                let index = (uniform * list.len() as f64) as usize;
                list[index.min(list.len() - 1)].clone()
            }
            Values::Range { scale: Scale::Int, low, high } => {
                let value = low + (uniform * (high - low + 1.0)).floor();
                format!("{}", value.min(*high))
            }
            Values::Range { scale: Scale::Linear, low, high } => {
                short(low + uniform * (high - low), *low, *high)
            }
            Values::Range { scale: Scale::Log, low, high } => {
                let (from, to) = (scalar::ln(*low), scalar::ln(*high));
                short(scalar::exp(from + uniform * (to - from)), *low, *high)
            }
        }
    }

    /// Number of values, if finite.
    fn count(&self) -> Option<usize> {
        match &self.values {
            Values::List(list) => Some(list.len()),
            Values::Range { scale: Scale::Int, low, high } => Some((high - low) as usize + 1),
            Values::Range { .. } => None,
        }
    }
}

/// Four significant digits: precise enough for a hyperparameter and short enough to type.
fn short(value: f64, low: f64, high: f64) -> String {
    let rounded: f64 = format!("{value:.3e}").parse().expect("a formatted number parses");
    let value = rounded.clamp(low, high);
    if (1e-3..1e6).contains(&value.abs()) || value == 0.0 {
        format!("{value}")
    } else {
        format!("{value:e}")
    }
}

/// Parses a range. `None` if the text is a list, an error if the range is invalid.
fn range(text: &str) -> Option<Result<Values, &'static str>> {
    let (scale, ends) = text.split_once(':')?;
    let scale = match scale {
        "lin" => Scale::Linear,
        "log" => Scale::Log,
        "int" => Scale::Int,
        _ => return None,
    };
    let ends = ends.split_once("..");
    let ends = ends.and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
    let Some((low, high)) = ends.filter(|(low, high): &(f64, f64)| (high - low).is_finite()) else {
        return Some(Err("is not a range of numbers"));
    };
    Some(match scale {
        _ if low >= high => Err("ends before it starts"),
        Scale::Log if low <= 0.0 => Err("starts at or below 0, which has no logarithm"),
        Scale::Int if low.fract() != 0.0 || high.fract() != 0.0 => {
            Err("has bounds that are not whole numbers")
        }
        _ => Ok(Values::Range { scale, low, high }),
    })
}

/// Splits a list at commas outside of brackets, braces and quotes.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let (mut depth, mut quote) = (0_i32, None);
    for letter in text.chars() {
        match letter {
            '"' | '\'' if quote == Some(letter) => quote = None,
            '"' | '\'' if quote.is_none() => quote = Some(letter),
            '[' | '{' if quote.is_none() => depth += 1,
            ']' | '}' if quote.is_none() => depth -= 1,
            ',' if quote.is_none() && depth <= 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("there is always one").push(letter);
    }
    parts.into_iter().map(|part| part.trim().to_owned()).collect()
}

/// Every combination, the last key changing fastest.
pub fn grid(axes: &[Axis]) -> Result<Vec<Choice>, String> {
    let mut choices: Vec<Choice> = vec![Vec::new()];
    for Axis { key, values } in axes {
        let Values::List(list) = values else {
            return Err(format!(
                "--over {key} is a range; set the number of draws, as --random 20"
            ));
        };
        if choices.len() * list.len() > MAX_RUNS {
            return Err(format!("a grid of more than {MAX_RUNS} runs; try --random 20"));
        }
        let with = |choice: &Choice, value: &String| [&choice[..], from_ref(value)].concat();
        choices = choices.iter().flat_map(|c| list.iter().map(move |v| with(c, v))).collect();
    }
    Ok(choices)
}

/// `count` different combinations, drawn with a seed.
pub fn random(axes: &[Axis], count: usize, seed: u64) -> Result<Vec<Choice>, String> {
    if count == 0 || count > MAX_RUNS {
        return Err(format!("--random {count} is not in 1..={MAX_RUNS}; try 20"));
    }
    let possible = axes.iter().try_fold(1_usize, |all, axis| all.checked_mul(axis.count()?));
    if let Some(possible) = possible.filter(|possible| *possible < count) {
        let fix = format!("try --random {possible}, or drop it to run all");
        return Err(format!("--random {count} is more than the {possible} combinations; {fix}"));
    }
    let mut choices: Vec<Choice> = Vec::new();
    for number in 0..MAX_DRAWS * count as u64 {
        let choice: Choice = axes.iter().map(|axis| axis.draw(seed, number)).collect();
        if !choices.contains(&choice) {
            choices.push(choice);
        }
        if choices.len() == count {
            return Ok(choices);
        }
    }
    let found = choices.len();
    Err(format!("--random {count} found only {found} different combinations; try {found}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axes(texts: &[&str]) -> Vec<Axis> {
        texts.iter().map(|text| Axis::parse(text).expect("sound")).collect()
    }

    #[test]
    fn a_grid_has_every_combination_and_the_last_key_changes_fastest() {
        let found = grid(&axes(&["optim.lr=1e-3, 1e-2", "train.batch=8,16,32"])).unwrap();
        let found: Vec<String> = found.iter().map(|choice| choice.join(" ")).collect();
        let expected = ["1e-3 8", "1e-3 16", "1e-3 32", "1e-2 8", "1e-2 16", "1e-2 32"];
        assert_eq!(found, expected);
    }

    #[test]
    fn commas_inside_a_value_do_not_split_it() {
        let text = r#"run.workers={min=2,max=4},3,[1,[2,3]],"a,b",'c]'"#;
        let [axis] = &axes(&[text])[..] else { panic!("one") };
        let expected = ["{min=2,max=4}", "3", "[1,[2,3]]", "\"a,b\"", "'c]'"].map(str::to_owned);
        assert_eq!(axis.values, Values::List(expected.to_vec()));
    }

    #[test]
    fn an_invalid_axis_is_refused_with_a_fix() {
        for (text, rule) in [
            ("optim.lr", "is not of the form KEY=VALUES"),
            ("=3", "is not of the form KEY=VALUES"),
            ("optim.lr=1,,2", "has an empty value"),
            ("optim.lr=", "has an empty value"),
            ("optim.lr=1,2,1", "names a value twice"),
            ("optim.lr=log:0..1", "starts at or below 0"),
            ("optim.lr=lin:2..1", "ends before it starts"),
            ("optim.lr=lin:1..inf", "is not a range of numbers"),
            ("optim.lr=log:1e-3", "is not a range of numbers"),
            ("train.batch=int:1..2.5", "has bounds that are not whole numbers"),
        ] {
            let error = Axis::parse(text).expect_err(text);
            assert!(error.contains(rule) && error.contains("; "), "{text}: {error}");
        }
    }

    #[test]
    fn draws_stay_in_their_range_and_depend_on_the_seed_alone() {
        let both = axes(&["optim.lr=log:1e-4..1e-1", "train.batch=int:3..6", "a.b=lin:-1..1"]);
        let found = random(&both, 200, 7).unwrap();
        assert_eq!(
            random(&both, 50, 7).unwrap(),
            found[..50],
            "a larger search starts with the same runs"
        );
        assert_ne!(random(&both, 200, 8).unwrap(), found);
        let one = random(&both[..1], 20, 7).unwrap();
        assert!(found.iter().zip(&one).all(|(a, b)| a[0] == b[0]), "each key has its own draws");
        let number = |text: &String| text.parse::<f64>().expect("a number");
        let rates: Vec<f64> = found.iter().map(|choice| number(&choice[0])).collect();
        assert!(rates.iter().all(|rate| (1e-4..=1e-1).contains(rate)), "{rates:?}");
        for low in [1e-4, 1e-3, 1e-2] {
            let share = rates.iter().filter(|rate| (low..10.0 * low).contains(*rate)).count();
            assert!((40..100).contains(&share), "{share} of 200 in the decade from {low}");
        }
        let batches: BTreeSet<&str> = found.iter().map(|choice| choice[1].as_str()).collect();
        assert_eq!(batches.into_iter().collect::<Vec<_>>(), ["3", "4", "5", "6"]);
        assert!(found.iter().any(|choice| number(&choice[2]) < 0.0));
    }

    #[test]
    fn no_combination_is_drawn_twice() {
        let four = axes(&["a.b=1,2", "c.d=x,y"]);
        let mut all = random(&four, 4, 1).unwrap();
        all.sort();
        assert_eq!(all, grid(&four).unwrap());
        let error = random(&four, 5, 1).unwrap_err();
        assert!(error.contains("more than the 4 combinations; try --random 4"), "{error}");
        assert!(random(&four, 0, 1).is_err());
    }

    #[test]
    fn a_grid_of_ranges_or_of_too_many_runs_is_refused() {
        let error = grid(&axes(&["optim.lr=log:1e-4..1"])).unwrap_err();
        assert!(error.contains("--random 20"), "{error}");
        let list: Vec<String> = (0..101).map(|number| number.to_string()).collect();
        let wide = format!("a.b={}", list.join(","));
        assert!(grid(&axes(&[&wide, &wide])).unwrap_err().contains("more than 10000 runs"));
    }
}
