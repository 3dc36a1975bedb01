# SPDX-License-Identifier: Apache-2.0
"""The host's arithmetic for schedules: demands, capacities, layouts and indices."""
