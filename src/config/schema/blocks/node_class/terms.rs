//! The tables of what is looked for in AWS: images, subnets, groups, reservations.
//! They must not know how they are read.

use super::super::{BLOCK, argument, form};
use crate::config::id_format::Form;
use crate::config::schema::{BlockType, Kind, Repeat};

const TAGS: &str = "Tags it has, all of them; `\"*\"` is any value.";

pub(super) static AMI: BlockType = BlockType {
    name: "ami",
    repeat: Repeat::Many,
    about: "An image, or several. Blocks are alternatives; all arguments of one must fit. An alias \
            stands alone.",
    arguments: &[
        form(
            "alias",
            Form::Alias,
            "Images that AWS publishes: family and version, such as `al2023@latest`. Families are \
             `al2`, `al2023`, `bottlerocket`, `windows2019`, `windows2022` and `windows2025`, of \
             Windows only with `latest`.",
        ),
        form("id", Form::ImageId, "Image id."),
        form(
            "ssm_parameter",
            Form::Parameter,
            "SSM parameter that holds an image id.",
        ),
        form("name", Form::Filled, "Name of the image, `*` allowed."),
        form(
            "owner",
            Form::Filled,
            "Account id, `self`, or an alias such as `amazon`. If missing, `self` and `amazon` \
             where a name is given, and anyone where it is not.",
        ),
        argument("tags", Kind::Searched, "", TAGS),
    ],
    ..BLOCK
};

pub(super) static SUBNET: BlockType = BlockType {
    name: "subnet",
    repeat: Repeat::Many,
    about: "Subnets to launch into. Blocks are alternatives.",
    arguments: &[
        form("id", Form::SubnetId, "Subnet id."),
        argument("tags", Kind::Searched, "", TAGS),
    ],
    ..BLOCK
};

pub(super) static SECURITY_GROUP: BlockType = BlockType {
    name: "security_group",
    repeat: Repeat::Many,
    about: "Security groups of the nodes: all that any of the blocks finds.",
    arguments: &[
        form("id", Form::SecurityGroupId, "Group id."),
        form(
            "name",
            Form::Filled,
            "Name of the group, which is not its tag `Name`.",
        ),
        argument("tags", Kind::Searched, "", TAGS),
    ],
    ..BLOCK
};

pub(super) static CAPACITY_RESERVATION: BlockType = BlockType {
    name: "capacity_reservation",
    repeat: Repeat::Many,
    about: "Capacity reservations to use: all that any of the blocks finds. Without one, none is \
            used on purpose.",
    arguments: &[
        form("id", Form::ReservationId, "Reservation id."),
        form(
            "owner",
            Form::Account,
            "Account of the owner; with tags or criteria.",
        ),
        argument(
            "instance_match_criteria",
            Kind::OneOf(&["open", "targeted"]),
            "",
            "Which launches the reservation takes by itself: any that fits, or those that name it.",
        ),
        argument("tags", Kind::Searched, "", TAGS),
    ],
    ..BLOCK
};

pub(super) static PLACEMENT_GROUP: BlockType = BlockType {
    name: "placement_group",
    about: "The placement group of all its nodes, by id or name.",
    arguments: &[
        form("id", Form::PlacementGroupId, "Group id."),
        form("name", Form::Filled, "Name of the group."),
    ],
    ..BLOCK
};
