//! Properties of every mesh: ranks and coordinates invert each other, groups partition the ranks.

use lockstep_mesh::{Axis, Degrees, Group, Mesh, Rank};
use proptest::prelude::*;
use proptest::sample::subsequence;
use proptest::test_runner::RngSeed;

/// Fixed seed: every run and every machine tests equal cases.
fn cases(num_cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases: num_cases,
        rng_seed: RngSeed::Fixed(3),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

prop_compose! {
    fn meshes()(
        pipeline in 1..4_usize, replicas in 1..4_usize, expert in 1..4_usize,
        context in 1..3_usize, tensor in 1..5_usize,
    ) -> Mesh {
        let degrees = Degrees { pipeline, data: replicas * expert, expert, context, tensor };
        Mesh::new(degrees).expect("expert divides data by construction")
    }
}

fn axis_sets() -> impl Strategy<Value = Vec<Axis>> {
    subsequence(Axis::ALL.to_vec(), 0..=Axis::ALL.len())
}

fn ranks(mesh: &Mesh) -> impl Iterator<Item = Rank> {
    (0..mesh.num_ranks()).map(Rank)
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn rank_and_coordinates_invert_each_other(mesh in meshes()) {
        for rank in ranks(&mesh) {
            prop_assert_eq!(mesh.rank(mesh.coordinates(rank)), rank);
        }
    }

    #[test]
    fn groups_along_any_axes_partition_the_ranks(mesh in meshes(), axes in axis_sets()) {
        let mut found: Vec<Rank> = Vec::new();
        for group in mesh.groups(&axes) {
            found.extend(group.ranks());
            for &rank in group.ranks() {
                prop_assert_eq!(&mesh.group_along(&axes, rank), &group);
            }
        }
        found.sort_unstable();
        prop_assert_eq!(found, ranks(&mesh).collect::<Vec<_>>());
    }

    #[test]
    fn the_index_along_an_axis_is_the_group_rank(mesh in meshes()) {
        for rank in ranks(&mesh) {
            for axis in Axis::ALL {
                let group = mesh.group(axis, rank);
                prop_assert_eq!(group.len(), mesh.degree(axis));
                prop_assert_eq!(group.group_rank(rank), Some(mesh.index(axis, rank)));
            }
        }
    }

    #[test]
    fn ranks_of_a_group_agree_on_every_other_axis(mesh in meshes(), axes in axis_sets()) {
        let outside: Vec<Axis> = Axis::PRIME
            .into_iter()
            .filter(|axis| !axes.iter().any(|along| along.parts().contains(axis)))
            .collect();
        for rank in ranks(&mesh) {
            for &other in mesh.group_along(&axes, rank).ranks() {
                for &axis in &outside {
                    prop_assert_eq!(mesh.index(axis, other), mesh.index(axis, rank));
                }
            }
        }
    }

    #[test]
    fn no_axes_give_the_rank_alone_and_all_axes_give_the_world(mesh in meshes()) {
        let last = Rank(mesh.num_ranks() - 1);
        prop_assert_eq!(mesh.group_along(&[], last), Group::new(vec![last]));
        prop_assert_eq!(mesh.group_along(&Axis::ALL, last), Group::all(mesh.num_ranks()));
    }
}
