# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of schedules: demands, capacities, layouts and indices."""
