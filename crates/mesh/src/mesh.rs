//! Mesh of ranks: rank ↔ coordinates, and process groups along any set of axes.
//!
//! A rank is its coordinates read as a mixed-radix number, outermost axis first. A group along some
//! axes contains the ranks that agree with a given rank on every *other* axis. Groups along the
//! same axes partition the ranks. The ranks of a group ascend, so the group rank is the index along
//! the axis.

use std::fmt;

use crate::{Axis, Degrees, Group, Rank};

/// Mesh of ranks with one degree per axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mesh {
    degrees: Degrees,
}

/// Coordinates of a rank: its index along each of [`Axis::PRIME`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Coordinates {
    /// Pipeline stage.
    pub pipeline: usize,
    /// Replica of all experts: the outer part of the data index.
    pub replica: usize,
    /// Shard of the experts: the inner part of the data index.
    pub expert: usize,
    /// Context-parallel index.
    pub context: usize,
    /// Tensor-parallel index.
    pub tensor: usize,
}

/// Degrees that do not form a mesh.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MeshError {
    /// An axis has degree zero.
    #[error("the {axis} degree is 0; use 1 to leave the axis unsplit")]
    Zero {
        /// The axis.
        axis: Axis,
    },
    /// Expert groups do not fill the data axis.
    #[error("expert = {expert} does not divide data = {data}; try {}", Divisors(*.data))]
    ExpertsDoNotFit {
        /// The expert degree.
        expert: usize,
        /// The data degree.
        data: usize,
    },
    /// The number of ranks overflows.
    #[error("the product of the degrees is too large to number the workers")]
    TooLarge,
}

impl Mesh {
    /// Makes a mesh with these degrees.
    pub fn new(degrees: Degrees) -> Result<Self, MeshError> {
        let Degrees { pipeline, data, expert, context, tensor } = degrees;
        let axes = [
            (Axis::Pipeline, pipeline),
            (Axis::Data, data),
            (Axis::Expert, expert),
            (Axis::Context, context),
            (Axis::Tensor, tensor),
        ];
        if let Some(&(axis, _)) = axes.iter().find(|(_, degree)| *degree == 0) {
            return Err(MeshError::Zero { axis });
        }
        if !data.is_multiple_of(expert) {
            return Err(MeshError::ExpertsDoNotFit { expert, data });
        }
        let product = [pipeline, data, context, tensor]
            .into_iter()
            .try_fold(1_usize, usize::checked_mul)
            .ok_or(MeshError::TooLarge)?;
        assert!(product > 0, "no degree is zero");
        Ok(Self { degrees })
    }

    /// Degree of every axis.
    pub const fn degrees(&self) -> Degrees {
        self.degrees
    }

    /// Degree of `axis`.
    pub const fn degree(&self, axis: Axis) -> usize {
        self.degrees.degree(axis)
    }

    /// World size: the product of the degrees.
    pub fn num_ranks(&self) -> usize {
        Axis::PRIME.iter().map(|&axis| self.degree(axis)).product()
    }

    /// Coordinates of `rank`.
    pub fn coordinates(&self, rank: Rank) -> Coordinates {
        assert!(rank.0 < self.num_ranks(), "rank {rank} of {}", self.num_ranks());
        let mut rest = rank.0;
        // The innermost axis is the last digit.
        Axis::PRIME.iter().rev().fold(Coordinates::default(), |mut coordinates, &axis| {
            *coordinates.prime_mut(axis) = rest % self.degree(axis);
            rest /= self.degree(axis);
            coordinates
        })
    }

    /// Rank at `coordinates`.
    pub fn rank(&self, coordinates: Coordinates) -> Rank {
        Rank(self.number(coordinates, &Axis::PRIME))
    }

    /// Index of `rank` along `axis`, which is its group rank in [`Mesh::group`].
    pub fn index(&self, axis: Axis, rank: Rank) -> usize {
        self.number(self.coordinates(rank), axis.parts())
    }

    /// Group of `rank` along `axis`: the ranks that differ from it along this axis only, itself
    /// included.
    pub fn group(&self, axis: Axis, rank: Rank) -> Group {
        self.group_along(&[axis], rank)
    }

    /// Group of `rank` along several axes: the ranks that differ from it along these only. Without
    /// axes, `rank` alone.
    pub fn group_along(&self, axes: &[Axis], rank: Rank) -> Group {
        let mut group = vec![self.coordinates(rank)];
        // The outermost axis varies slowest, so ranks come out in ascending order.
        for axis in Axis::PRIME {
            if axes.iter().any(|along| along.parts().contains(&axis)) {
                let indices = 0..self.degree(axis);
                group = group
                    .iter()
                    .flat_map(|at| indices.clone().map(|index| at.with(axis, index)))
                    .collect();
            }
        }
        Group::new(group.into_iter().map(|at| self.rank(at)).collect())
    }

    /// All groups along `axes`, ordered by their first rank. Together they contain every rank once.
    pub fn groups(&self, axes: &[Axis]) -> Vec<Group> {
        (0..self.num_ranks())
            .map(|rank| (rank, self.group_along(axes, Rank(rank))))
            .filter(|(rank, group)| group.rank(0) == Rank(*rank))
            .map(|(_, group)| group)
            .collect()
    }

    /// Coordinates along `axes` read as a mixed-radix number, outermost axis first.
    fn number(&self, mut coordinates: Coordinates, axes: &[Axis]) -> usize {
        axes.iter().fold(0, |number, &axis| {
            let (index, degree) = (*coordinates.prime_mut(axis), self.degree(axis));
            assert!(index < degree, "{axis} index {index} of {degree}");
            number * degree + index
        })
    }
}

impl Coordinates {
    /// Index along a prime axis.
    fn prime_mut(&mut self, axis: Axis) -> &mut usize {
        match axis {
            Axis::Pipeline => &mut self.pipeline,
            Axis::Replica => &mut self.replica,
            Axis::Expert => &mut self.expert,
            Axis::Context => &mut self.context,
            Axis::Tensor => &mut self.tensor,
            Axis::Data => unreachable!("the data axis is not prime"),
        }
    }

    /// Coordinates with another index along a prime axis.
    fn with(mut self, axis: Axis, index: usize) -> Self {
        *self.prime_mut(axis) = index;
        self
    }
}

impl fmt::Display for Mesh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Degrees { pipeline, data, expert, context, tensor } = self.degrees;
        write!(f, "pipeline {pipeline} x data {data} x context {context} x tensor {tensor}")?;
        if expert > 1 { write!(f, ", expert {expert} inside data") } else { Ok(()) }
    }
}

/// Divisors of a number, listed as alternatives for a message.
struct Divisors(usize);

impl fmt::Display for Divisors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> =
            (1..=self.0).filter(|d| self.0.is_multiple_of(*d)).map(|d| d.to_string()).collect();
        match all.split_last() {
            Some((last, [])) => write!(f, "{last}"),
            Some((last, rest)) => write!(f, "{} or {last}", rest.join(", ")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mesh(degrees: Degrees) -> Mesh {
        Mesh::new(degrees).unwrap()
    }

    #[test]
    fn the_tensor_axis_is_innermost_and_the_pipeline_outermost() {
        let mesh = mesh(Degrees { pipeline: 2, data: 3, context: 2, tensor: 4, expert: 1 });
        let strides =
            [(Axis::Tensor, 1), (Axis::Context, 4), (Axis::Data, 8), (Axis::Pipeline, 24)];
        for (axis, stride) in strides {
            let group = mesh.group(axis, Rank(0));
            let expected: Vec<Rank> = (0..mesh.degree(axis)).map(|i| Rank(i * stride)).collect();
            assert_eq!(group.ranks(), expected, "{axis}");
        }
    }

    #[test]
    fn expert_groups_are_consecutive_data_indices() {
        let mesh = mesh(Degrees { data: 6, expert: 3, tensor: 2, ..Degrees::ONE });
        let rank = Rank(9);
        assert_eq!(mesh.index(Axis::Data, rank), 4);
        assert_eq!((mesh.index(Axis::Replica, rank), mesh.index(Axis::Expert, rank)), (1, 1));
        assert_eq!(mesh.group(Axis::Expert, rank).to_string(), "[7 9 11]");
        assert_eq!(mesh.group(Axis::Replica, rank).to_string(), "[3 9]");
        assert_eq!(mesh.group(Axis::Data, rank).to_string(), "[1 3 5 7 9 11]");
    }

    #[test]
    fn one_worker_is_a_group_of_one_along_every_axis() {
        let mesh = mesh(Degrees::ONE);
        for axis in Axis::ALL {
            assert_eq!(mesh.group(axis, Rank(0)), Group::all(1));
        }
    }

    #[test]
    fn invalid_degrees_are_refused_with_alternatives() {
        let error = Mesh::new(Degrees { data: 6, expert: 4, ..Degrees::ONE }).unwrap_err();
        assert_eq!(error.to_string(), "expert = 4 does not divide data = 6; try 1, 2, 3 or 6");
        let error = Mesh::new(Degrees { context: 0, ..Degrees::ONE }).unwrap_err();
        assert_eq!(error.to_string(), "the context degree is 0; use 1 to leave the axis unsplit");
        let error = Mesh::new(Degrees { data: usize::MAX, tensor: 2, ..Degrees::ONE });
        assert_eq!(error, Err(MeshError::TooLarge));
    }

    #[test]
    fn a_mesh_displays_as_a_product() {
        let mesh = mesh(Degrees { pipeline: 2, data: 4, expert: 2, ..Degrees::ONE });
        let text = "pipeline 2 x data 4 x context 1 x tensor 1, expert 2 inside data";
        assert_eq!(mesh.to_string(), text);
    }
}
